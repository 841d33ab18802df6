"""The resampler against torch's uint8 antialiased bicubic interpolation, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from qwen35.images.resize import axis_taps, resize


def picture(rng: np.random.Generator, height: int, width: int, kind: str) -> np.ndarray:
    if kind == "noise":
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == "extremes":  # only 0 and 255: every overshoot of the filter is clamped
        return (rng.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 7 % 256, y * 5 % 256, (x + y) % 256], axis=2).astype(np.uint8)


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["noise", "extremes", "ramp"])
@pytest.mark.parametrize("seed", range(5))
def test_equals_torch_bit_for_bit(kind: str, seed: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng([seed, len(kind)])
    for _ in range(20):
        height, width, tall, wide = (int(v) for v in rng.integers(1, 400, 4))
        rgb = picture(rng, height, width, kind)
        source = torch.from_numpy(rgb).permute(2, 0, 1)[None].contiguous()
        want = (
            torch.nn.functional.interpolate(
                source, size=(tall, wide), mode="bicubic", antialias=True, align_corners=False
            )[0]
            .permute(1, 2, 0)
            .numpy()
        )
        np.testing.assert_array_equal(resize(rgb, tall, wide), want, f"{height}x{width}->{tall}x{wide}")


@pytest.mark.peer
@pytest.mark.parametrize(
    ("size_in", "size_out"), [(4000, 864), (3, 1248), (1, 32), (5000, 32), (33, 32), (31, 32)]
)
def test_equals_torch_on_far_ratios(size_in: int, size_out: int) -> None:
    torch = pytest.importorskip("torch")
    rgb = picture(np.random.default_rng(size_in), size_in, 8, "noise")
    turned = np.ascontiguousarray(rgb.transpose(1, 0, 2))
    for image, tall, wide in ((rgb, size_out, 8), (turned, 8, size_out)):
        want = torch.nn.functional.interpolate(
            torch.from_numpy(image).permute(2, 0, 1)[None].contiguous(),
            size=(tall, wide),
            mode="bicubic",
            antialias=True,
        )
        np.testing.assert_array_equal(resize(image, tall, wide), want[0].permute(1, 2, 0).numpy())


def test_same_size_is_a_copy() -> None:
    rgb = picture(np.random.default_rng(3), 40, 24, "noise")
    out = resize(rgb, 40, 24)
    np.testing.assert_array_equal(out, rgb)
    assert not np.shares_memory(out, rgb)


@pytest.mark.parametrize(("tall", "wide"), [(123, 160), (96, 77), (200, 77), (123, 40)])
def test_one_pass_is_pillows_to_the_last_bit_but_one(tall: int, wide: int) -> None:
    """Pillow has the same filter with finer weights. (Its two passes together differ more: another order.)"""
    image = pytest.importorskip("PIL.Image")
    rgb = picture(np.random.default_rng(4), 123, 77, "noise")
    want = np.asarray(image.fromarray(rgb).resize((wide, tall), image.Resampling.BICUBIC)).astype(int)
    assert np.abs(resize(rgb, tall, wide).astype(int) - want).max() <= 1


@pytest.mark.parametrize(("size_in", "size_out"), [(100, 37), (37, 100), (1, 9), (640, 640)])
def test_weights_sum_to_one(size_in: int, size_out: int) -> None:
    taps = axis_taps(size_in, size_out)
    sums = taps.weights.astype(np.int64).sum(axis=1) / (1 << taps.precision)
    np.testing.assert_allclose(sums, 1.0, atol=1e-3)
    assert (taps.first >= 0).all()
    assert (taps.first + taps.length <= size_in).all()
    assert 1 << 14 <= np.abs(taps.weights).max() < 1 << 15 or taps.precision == 22
