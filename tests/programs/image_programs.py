"""Whole programs of image processing."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case, Generator


# A 2-D convolution by loops over the kernel (every course).
def convolve2d(img, kernel):
    kh, kw = kernel.shape
    padded = np.pad(img, ((kh // 2, kh // 2), (kw // 2, kw // 2)), mode="edge")
    out = np.zeros_like(img)
    for i in range(kh):
        for j in range(kw):
            out += kernel[i, j] * padded[i : i + img.shape[0], j : j + img.shape[1]]
    return out


# Histogram equalisation (Gonzalez and Woods).
def equalise(img):
    hist = np.bincount(img.ravel(), minlength=256)
    cdf = hist.cumsum()
    cdf = (cdf - cdf.min()) * 255 / (cdf.max() - cdf.min())
    return cdf.astype(np.uint8)[img]


# Otsu's threshold, as scikit-image's threshold_otsu.
def otsu(img):
    counts, edges = np.histogram(img, bins=32)
    centres = (edges[:-1] + edges[1:]) / 2
    w1, w2 = np.cumsum(counts), np.cumsum(counts[::-1])[::-1]
    m1 = np.cumsum(counts * centres) / np.maximum(w1, 1)
    m2 = (np.cumsum((counts * centres)[::-1]) / np.maximum(w2[::-1], 1))[::-1]
    variance = w1[:-1] * w2[1:] * (m1[:-1] - m2[1:]) ** 2
    return centres[np.argmax(variance)]


# Floyd and Steinberg's error diffusion, first rows.
def dither(img):
    out = img.astype(float).copy()
    h, w = out.shape
    for y in range(4):
        for x in range(1, 6):
            old = out[y, x]
            new = np.round(old)
            out[y, x] = new
            err = old - new
            out[y, x + 1] += err * 7 / 16
            out[y + 1, x - 1] += err * 3 / 16
            out[y + 1, x] += err * 5 / 16
            out[y + 1, x + 1] += err * 1 / 16
    return out


# RGB to HSV (Smith, 1978; matplotlib's rgb_to_hsv).
def rgb_to_hsv(arr):
    out = np.zeros_like(arr)
    arr_max = arr.max(-1)
    delta = np.ptp(arr, -1)
    ipos = arr_max > 0
    s = np.zeros_like(delta)
    s[ipos] = delta[ipos] / arr_max[ipos]
    ipos = delta > 0
    idx = (arr[..., 0] == arr_max) & ipos
    out[idx, 0] = (arr[idx, 1] - arr[idx, 2]) / delta[idx]
    idx = (arr[..., 1] == arr_max) & ipos
    out[idx, 0] = 2.0 + (arr[idx, 2] - arr[idx, 0]) / delta[idx]
    idx = (arr[..., 2] == arr_max) & ipos
    out[idx, 0] = 4.0 + (arr[idx, 0] - arr[idx, 1]) / delta[idx]
    out[..., 0] = (out[..., 0] / 6.0) % 1.0
    out[..., 1] = s
    out[..., 2] = arr_max
    return out


# Alpha blending (Porter and Duff).
def over(src, dst):
    a = src[..., 3:] / 255.0
    out = np.empty_like(dst)
    out[..., :3] = src[..., :3] * a + dst[..., :3] * (1 - a)
    out[..., 3] = 255
    return out


# A median filter by stacking shifted copies (SciPy cookbook).
def median3(img):
    p = np.pad(img, 1, mode="reflect")
    stack = [p[i : i + img.shape[0], j : j + img.shape[1]] for i in range(3) for j in range(3)]
    return np.median(np.stack(stack), axis=0)


# Bilinear sampling (scipy.ndimage.map_coordinates, order 1).
def bilinear(img, y, x):
    y0 = np.clip(np.floor(y).astype(int), 0, img.shape[0] - 2)
    x0 = np.clip(np.floor(x).astype(int), 0, img.shape[1] - 2)
    dy, dx = y - y0, x - x0
    return (
        img[y0, x0] * (1 - dy) * (1 - dx)
        + img[y0 + 1, x0] * dy * (1 - dx)
        + img[y0, x0 + 1] * (1 - dy) * dx
        + img[y0 + 1, x0 + 1] * dy * dx
    )


# Perona and Malik's anisotropic diffusion.
def perona_malik(img, iterations, kappa, gamma):
    img = img.astype(np.float32)
    for _ in range(iterations):
        dn, ds, de, dw = np.zeros_like(img), np.zeros_like(img), np.zeros_like(img), np.zeros_like(img)
        dn[1:, :] = img[:-1, :] - img[1:, :]
        ds[:-1, :] = img[1:, :] - img[:-1, :]
        de[:, :-1] = img[:, 1:] - img[:, :-1]
        dw[:, 1:] = img[:, :-1] - img[:, 1:]
        img += gamma * sum(np.exp(-((d / kappa) ** 2)) * d for d in (dn, ds, de, dw))
    return img


# Downsampling by block means (scikit-image's block_reduce).
def downsample(img):
    h, w = img.shape[0] // 2, img.shape[1] // 2
    return img[: h * 2, : w * 2].reshape(h, 2, w, 2).mean(axis=(1, 3))


# Harris corners (Harris and Stephens, 1988).
def harris(img, k):
    iy, ix = np.gradient(img)
    ixx, iyy, ixy = ix * ix, iy * iy, ix * iy

    def box(a):
        p = np.pad(a, 1)
        return sum(p[i : i + a.shape[0], j : j + a.shape[1]] for i in range(3) for j in range(3))

    sxx, syy, sxy = box(ixx), box(iyy), box(ixy)
    return sxx * syy - sxy**2 - k * (sxx + syy) ** 2


def _picture(r: Generator, n: int) -> np.ndarray:
    return r.integers(0, 256, size=(n, n)).astype(np.uint8)


CASES = [
    Case(convolve2d, lambda r, n: (r.normal(size=(n, n)), r.normal(size=(3, 3)))),
    Case(equalise, lambda r, n: (_picture(r, n),)),
    Case(otsu, lambda r, n: (_picture(r, n),)),
    Case(dither, lambda r, n: (r.random((n, n)),)),
    Case(rgb_to_hsv, lambda r, n: (r.random((n, n, 3)),)),
    Case(
        over,
        lambda r, n: (r.integers(0, 256, (n, n, 4)).astype(np.uint8), r.integers(0, 256, (n, n, 4)).astype(np.uint8)),
    ),
    Case(median3, lambda r, n: (_picture(r, n),)),
    Case(bilinear, lambda r, n: (r.random((n, n)), r.uniform(0, 6, (n, n)), r.uniform(0, 6, (n, n)))),
    Case(perona_malik, lambda r, n: (r.random((n, n)), 3, 0.1, 0.2)),
    Case(downsample, lambda r, n: (r.random((n, n + 1)),)),
    Case(harris, lambda r, n: (r.random((n, n)), 0.05)),
]
