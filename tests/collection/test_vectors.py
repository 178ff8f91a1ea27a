import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from us3l.collection.vectors import Portion, building, check_out, read_about, read_embeddings
from us3l.system.errors import UserError

ABOUT = {"width": 0.5, "data": {"source": "photos", "images": 5}}
VALUES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
NAMES = ["a.png", 'b "2", c.png', "ü/d.png", "broken \udcff.png", "e.png"]


def parts(labelled=True):
    """The middle one has nothing that could be read."""
    labels = ["cat", None, "dog", "cat", "dog"]
    return [
        Portion(NAMES[:2], VALUES[:2], labels[:2] if labelled else None, []),
        Portion([], np.zeros((0, 0), np.float32), [] if labelled else None, ["x.png: not an image"]),
        Portion(NAMES[2:], VALUES[2:], labels[2:] if labelled else None, []),
    ]


def made(path, labelled=True, stops=(3,)):
    """A file, by one process, or by several of which each makes some parts."""
    for stop in stops:
        with building(path, ABOUT) as file:
            for part in parts(labelled)[file.done : stop]:
                file.add(part)
            if stop == 3:
                assert file.damaged() == ["x.png: not an image"]
                file.finish()
    return path


@pytest.mark.parametrize("labelled", [True, False])
def test_what_is_read_is_what_was_written(tmp_path, labelled):
    found = read_embeddings(made(tmp_path / "e.parquet", labelled))
    assert found.files == [*NAMES[:3], "broken \\xff.png", "e.png"]
    np.testing.assert_array_equal(found.values, VALUES)
    assert found.values.dtype == np.float32
    assert found.labels == (["cat", None, "dog", "cat", "dog"] if labelled else None)
    assert found.about == {"format": 1, **ABOUT} == read_about(tmp_path / "e.parquet")
    assert list(found.rows[1]) == ["file", *(["label"] if labelled else []), "embedding"]
    assert [path.name for path in tmp_path.iterdir()] == ["e.parquet"]


def test_the_bytes_do_not_tell_whether_it_was_stopped(tmp_path):
    whole, stopped = made(tmp_path / "a.parquet"), made(tmp_path / "b.parquet", stops=(1, 2, 3))
    assert whole.read_bytes() == stopped.read_bytes()


def test_others_can_read_them(tmp_path):
    table = pq.read_table(made(tmp_path / "e.parquet"))
    assert table.column_names == ["file", "embedding", "label"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32())
    assert pq.read_table(made(tmp_path / "f.parquet", labelled=False)).column_names == ["file", "embedding"]


def test_parts_of_another_job_are_not_taken_for_this_one(tmp_path):
    path = tmp_path / "e.parquet"
    made(path, stops=(1,))
    with pytest.raises(UserError, match="another width: remove it"), building(path, ABOUT | {"width": 1.0}):
        pass
    with building(path, ABOUT | {"width": 1.0}, overwrite=True) as file:
        assert file.done == 0
    with pytest.raises(UserError, match="not finished"):
        read_embeddings(path)


def test_one_process_at_a_time(tmp_path):
    with (
        building(tmp_path / "e.parquet", ABOUT),
        pytest.raises(UserError, match="in use"),
        building(tmp_path / "e.parquet", {}),
    ):
        pass


def test_a_file_is_not_replaced_unless_one_says_so(tmp_path):
    path = made(tmp_path / "e.parquet")
    assert check_out(path, ABOUT)
    assert not check_out(path, ABOUT | {"width": 1.0}, overwrite=True)
    assert not check_out(tmp_path / "new.parquet")
    with pytest.raises(UserError, match="already exists"):
        check_out(path, ABOUT | {"width": 1.0})
    with pytest.raises(UserError, match=r"ends with \.parquet; for other kinds"):
        check_out(tmp_path / "e.txt")


def test_a_full_disk_is_one_line_and_keeps_what_is_done(tmp_path, monkeypatch):
    path = tmp_path / "e.parquet"
    made(path, stops=(1,))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with building(path, ABOUT) as file:
        with monkeypatch.context() as patched:
            patched.setattr(pq, "write_table", full)
            with pytest.raises(UserError, match=r"No space left.*the 1 parts"):
                file.add(parts()[1])
        assert file.done == 1
    assert read_embeddings(made(path)).files[0] == "a.png"


def test_damaged_files_are_told(tmp_path):
    path = made(tmp_path / "e.parquet")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match=r"cannot read .*e\."):
        read_embeddings(path)
    with pytest.raises(UserError, match="no file"):
        read_embeddings(tmp_path / "other.parquet")


@pytest.mark.parametrize(
    "columns",
    [
        {"file": ["a", "b"], "embedding": [[1.0], [2.0, 3.0]]},
        {"file": ["a"], "embedding": [[float("nan")]]},
        {"file": ["a"], "embedding": [["x"]]},
        {"file": ["a"]},
        {"file": [], "embedding": []},
    ],
)
def test_tables_of_others_are_checked(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    with pytest.raises(UserError, match="cannot read"):
        read_embeddings(tmp_path / "e.parquet")


def test_tables_of_others_that_fit_are_read(tmp_path):
    pq.write_table(pa.table({"file": ["a"], "embedding": [[1.0, 2.0]], "label": [3]}), tmp_path / "e.parquet")
    found = read_embeddings(tmp_path / "e.parquet")
    assert (found.labels, found.about, found.values.tolist()) == (["3"], None, [[1.0, 2.0]])


def test_versions_to_come_are_refused(tmp_path):
    schema = pa.schema(
        [("file", pa.string()), ("embedding", pa.list_(pa.float32()))], {"us3l": json.dumps({"format": 2})}
    )
    pq.write_table(pa.table({"file": ["a"], "embedding": [[1.0]]}, schema), tmp_path / "e.parquet")
    with pytest.raises(UserError, match="newer"):
        read_embeddings(tmp_path / "e.parquet")
