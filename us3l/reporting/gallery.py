"""What the widest and the narrowest network see in the same images: nearest neighbours, and a map of all."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet
from us3l.evaluation.features import embed_all
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import Advance
from us3l.system.spacing import evenly_spaced
from us3l.system.streams import printable
from us3l.width import Width

QUERIES, NEIGHBOURS, MAPPED, CLASSES, CLUSTERS = 8, 6, 500, 10, 8
FEWEST = 20  # images that make a gallery
SIDE = 48  # of a thumbnail at most


def gallery(net: Slimmable, images: ImageSet, size: int, progress: Advance | None = None) -> dict[str, Any]:
    """Return neighbours, maps and the thumbnails that both point to, as plain values.

    Args:
        net: The network that looks.
        images: What it looks at.
        size: Side of what it sees, in pixels.
        progress: Called with the number of newly finished items, of all that `work` says.
    """
    if len(images) < FEWEST:
        raise UserError(f"{images.name} has only {len(images)} images; a gallery needs {FEWEST}")
    widths = ends(net)
    embedded = embed_all([net.at(width) for width in widths], images, Preprocessing.of(net, size), progress=progress)
    features = [F.normalize(values.float(), dim=1) for values in embedded.values]
    groups, names = grouped(images, features[0])
    queries = choose_queries(len(images), images.labels)
    mapped, shown = choose_mapped(groups)
    near = [nearest(values, queries, NEIGHBOURS) for values in features]
    layouts = layout([values[mapped] for values in features], progress)
    files = files_of(images)
    used = torch.cat([queries, *(indices.flatten() for indices in near), mapped]).unique()
    place = {index: number for number, index in enumerate(used.tolist())}
    return {
        "data": images.name,
        "count": len(images),
        "labelled": images.labels is not None,
        "sheet": contact_sheet(images.images[used]),
        "images": [names[label] for label in groups[used].tolist()],
        "files": [printable(files[index]) for index in used.tolist()] if files else None,
        "widths": widths,
        "queries": [place[index] for index in queries.tolist()],
        "neighbours": [[[place[index] for index in row] for row in indices.tolist()] for indices in near],
        "mapped": [place[index] for index in mapped.tolist()],
        "groups": [names[group] for group in shown],
        "all_groups": len(names),
        "group_of": [shown.index(group) for group in groups[mapped].tolist()],
        "layouts": [np.round(points, 3).tolist() for points in layouts],
    }


def files_of(images: ImageSet) -> list[str] | None:
    """Return what each image is called in its source; None if they have no names."""
    if images.files is None or images.files.source.numbered:
        return None
    kept = images.files if images.places is None else images.files.subset(images.places)
    return [kept.source.name(int(index)) for index in kept.chosen]


def ends(net: Slimmable) -> list[Width]:
    """Return the widest and the narrowest width that can be used as they are, or the only one."""
    ready = [width for width in net.widths if net.calibrated(width)] or net.widths
    return list(dict.fromkeys((ready[-1], ready[0])))


def work(net: Slimmable, images: ImageSet) -> int:
    """Return how much the progress counts up to: the images at each width, and those on its map."""
    return len(ends(net)) * (len(images) + MAPPED)


def grouped(images: ImageSet, features: Tensor) -> tuple[Tensor, list[str]]:
    """Return each image's group, and the groups' names: the classes or, without labels, clusters of similar images."""
    if images.labels is not None and images.classes is not None:
        return images.labels, images.classes
    from sklearn.cluster import KMeans

    clusters = KMeans(CLUSTERS, n_init=4, random_state=0).fit_predict(features.numpy())
    return torch.from_numpy(clusters).long(), [f"cluster {number + 1}" for number in range(CLUSTERS)]


def choose_queries(count: int, labels: Tensor | None) -> Tensor:
    """Return images of different classes where they are known, else from all over the set."""
    if labels is None:
        return evenly(torch.arange(count), QUERIES)
    classes = evenly(labels.unique(), QUERIES)
    return torch.stack([(labels == label).nonzero()[0, 0] for label in classes])


def choose_mapped(groups: Tensor) -> tuple[Tensor, list[int]]:
    """Return some images of some groups: more colours than that cannot be told apart."""
    shown = evenly(groups.unique(), CLASSES)
    return evenly(torch.isin(groups, shown).nonzero().flatten(), MAPPED), shown.tolist()


def evenly(values: Tensor, count: int) -> Tensor:
    """Return at most `count` of the values, spread over all.

    >>> evenly(torch.arange(10), 4).tolist()
    [0, 3, 6, 9]
    """
    return values[evenly_spaced(len(values), count)]


def nearest(features: Tensor, queries: Tensor, count: int) -> Tensor:
    """Return, for each query, the indices of the images with the most similar features, but for itself.

    >>> nearest(F.normalize(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]])), torch.tensor([0]), 1).tolist()
    [[2]]
    """
    similarity = features[queries] @ features.T
    similarity[torch.arange(len(queries)), queries] = -math.inf
    return similarity.topk(min(count, len(features) - 1)).indices


def layout(features: Sequence[Tensor], progress: Advance | None = None) -> list[np.ndarray]:
    """Return each network's features in two dimensions, from 0 to 1, by t-SNE.

    The first starts from the principal components, the others from the first: so they can be compared.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    points = PCA(2, random_state=0).fit_transform(features[0].numpy())
    layouts = []
    for values in features:
        start = 1e-4 * points / (points[:, 0].std() + 1e-9)
        points = TSNE(
            init=start.astype(np.float32), perplexity=min(30, len(values) / 4), max_iter=500, random_state=0
        ).fit_transform(values.numpy())
        low, high = points.min(axis=0), points.max(axis=0)
        layouts.append((points - low) / np.maximum(high - low, 1e-9))
        if progress:
            progress(MAPPED)
    return layouts


def contact_sheet(images: Tensor) -> dict[str, Any]:
    """Return thumbnails of images (N x 3 x S x S, uint8) as one JPEG in a data URI, row by row."""
    side = min(SIDE, images.shape[-1])
    if side < images.shape[-1]:
        images = F.interpolate(images.float(), (side, side), mode="bilinear", antialias=True).round().to(torch.uint8)
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    padded = torch.zeros(rows * columns, 3, side, side, dtype=torch.uint8)
    padded[: len(images)] = images
    tiles = padded.view(rows, columns, 3, side, side).permute(0, 3, 1, 4, 2).reshape(rows * side, columns * side, 3)
    file = io.BytesIO()
    Image.fromarray(tiles.numpy()).save(file, "JPEG", quality=85)
    uri = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    return {"uri": uri, "columns": columns, "rows": rows}
