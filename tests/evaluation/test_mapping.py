import torch

from us3l.evaluation.mapping import fit_map


def test_the_map_leads_to_the_full_networks_features():
    draw = torch.Generator().manual_seed(0)
    full = torch.randn(500, 8, generator=draw) * 3 + 1
    narrow = full @ torch.randn(8, 12, generator=draw) + 5  # which has all that the full features have
    found = fit_map(narrow, full)
    assert found.weight.shape == (8, 12)
    new = torch.randn(20, 8, generator=draw)
    error = fit_map(full, full).scores(full) - found.scores(narrow)
    assert error.norm() < 0.1 * full.norm()
    assert new.shape == (20, 8)


def test_the_full_networks_own_map_only_takes_away_the_mean():
    full = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) + 7
    found = fit_map(full, full)
    torch.testing.assert_close(found.weight, torch.eye(4))
    torch.testing.assert_close(found.scores(full), full - full.mean(0), rtol=1e-5, atol=1e-5)


def test_what_is_always_the_same_does_no_harm():
    full = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    found = fit_map(torch.zeros(50, 3), full)
    assert found.weight.isfinite().all()
