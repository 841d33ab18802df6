"""The size rule and the patches against transformers' image processor."""

from __future__ import annotations

import numpy as np
import pytest

from qwen35.errors import ImageError
from qwen35.images import Preprocessor, smart_resize

REAL = Preprocessor(patch=16, merge=2, min_pixels=65536, max_pixels=1048576)


@pytest.mark.parametrize(
    ("size", "want"), [((853, 1280), (832, 1248)), ((100, 100), (256, 256)), ((4000, 3000), (1152, 864))]
)
def test_size_rule_check_values(size: tuple[int, int], want: tuple[int, int]) -> None:
    assert smart_resize(*size, 32, 65536, 1048576) == want


def test_the_thinnest_picture_that_is_taken() -> None:
    assert smart_resize(10, 2000, 32, 65536, 1048576) == (32, 3648)
    for size in ((10, 2001), (2001, 10)):
        with pytest.raises(ImageError, match="too thin"):
            smart_resize(*size, 32, 65536, 1048576)


@pytest.mark.peer
def test_size_rule_equals_the_reference() -> None:
    pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    rng = np.random.default_rng(1)
    for _ in range(3000):
        height, width = (int(2**v) for v in rng.uniform(0, 13, 2))
        if max(height, width) > 200 * min(height, width):
            with pytest.raises(ImageError):
                smart_resize(height, width, 32, 65536, 1048576)
            continue
        want = module.smart_resize(height, width, factor=32, min_pixels=65536, max_pixels=1048576)
        assert smart_resize(height, width, 32, 65536, 1048576) == want, (height, width)


@pytest.mark.peer
def test_patches_equal_the_reference_where_nothing_is_resampled() -> None:
    """All sizes here are kept by the size rule: only scaling and order are compared (two frames are one)."""
    pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processor = module.Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": 1024, "longest_edge": 1048576},
    )
    rng = np.random.default_rng(2)
    cut = Preprocessor(16, 2, 1024, 1048576)
    for _ in range(40):
        height, width = (int(v) * 32 for v in rng.integers(1, 9, 2))
        rgb = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        got = cut(rgb)
        want = processor(images=[rgb], return_tensors="np")
        assert [1, *got.grid] == want["image_grid_thw"][0].tolist()
        reference = want["pixel_values"].reshape(len(got.patches), 3, 2, 256)
        np.testing.assert_array_equal(reference[:, :, 0], reference[:, :, 1])
        np.testing.assert_allclose(got.patches.reshape(-1, 3, 256), reference[:, :, 0], atol=2e-7, rtol=0)
        assert cut.tokens(got.grid) == len(got.patches) // 4


@pytest.mark.peer
def test_patches_equal_torchvisions_arithmetic_over_many_sizes() -> None:
    """Resizing, scaling and order as the torchvision back end does them, computed with torch: bit for bit."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    cut = Preprocessor(16, 2, 4096, 65536)
    for _ in range(220):
        height, width = (int(2**v) for v in rng.uniform(2, 9.5, 2))
        rgb = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        got = cut(rgb)
        wide, tall = got.resized
        x = torch.from_numpy(rgb).permute(2, 0, 1)[None]
        if (tall, wide) != (height, width):
            x = torch.nn.functional.interpolate(
                x.contiguous(), size=(tall, wide), mode="bicubic", antialias=True
            )
        x = (x.to(torch.float32) - 127.5) / 127.5
        grid_h, grid_w = tall // 16, wide // 16
        x = x.reshape(3, grid_h // 2, 2, 16, grid_w // 2, 2, 16).permute(1, 4, 2, 5, 0, 3, 6)
        np.testing.assert_array_equal(got.patches, x.reshape(grid_h * grid_w, 768).numpy())


@pytest.mark.peer
def test_patches_equal_the_fast_processor() -> None:
    """transformers' torchvision-backed processor itself, where torchvision can be installed."""
    pytest.importorskip("torch")
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        pytest.skip(f"torchvision does not import here: {error}")
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": 4096, "longest_edge": 65536},
    )
    rng = np.random.default_rng(6)
    cut = Preprocessor(16, 2, 4096, 65536)
    for _ in range(200):
        height, width = (int(2**v) for v in rng.uniform(2, 9.5, 2))
        rgb = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        got = cut(rgb)
        want = processor(images=[rgb], return_tensors="np", input_data_format="channels_last")
        reference = np.asarray(want["pixel_values"]).reshape(len(got.patches), 3, 2, 256)[:, :, 0]
        np.testing.assert_array_equal(got.patches.reshape(-1, 3, 256), reference)


def test_prepared_tells_both_sizes() -> None:
    got = REAL(np.zeros((4000, 3000, 3), np.uint8))
    assert (got.original, got.resized, got.grid) == ((3000, 4000), (864, 1152), (72, 54))
    assert got.patches.shape == (72 * 54, 768)
    assert got.patches.dtype == np.float32
    assert got.patches.min() == got.patches.max() == -1.0
