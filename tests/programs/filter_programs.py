"""Whole programs of image filters."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from tests.programs.case import Case


# Canny's edges up to hysteresis, with SciPy (scikit-image's canny).
def canny_candidates(img, sigma, low):
    smooth = ndimage.gaussian_filter(img, sigma)
    gy, gx = ndimage.sobel(smooth, axis=0), ndimage.sobel(smooth, axis=1)
    magnitude = np.hypot(gx, gy)
    horizontal = np.abs(gx) >= np.abs(gy)
    padded = np.pad(magnitude, 1)
    rows = np.maximum(padded[:-2, 1:-1], padded[2:, 1:-1])
    columns = np.maximum(padded[1:-1, :-2], padded[1:-1, 2:])
    return (magnitude >= np.where(horizontal, columns, rows)) & (magnitude > low)


# Unsharp masking (scikit-image's unsharp_mask).
def unsharp(img, radius, amount):
    blurred = ndimage.gaussian_filter(img, radius, mode="reflect")
    return np.clip(img + amount * (img - blurred), 0, 1)


# A bilateral filter by shifts (Tomasi and Manduchi).
def bilateral(img, spatial, tonal):
    total, weight = np.zeros_like(img), np.zeros_like(img)
    padded = np.pad(img, 2, mode="reflect")
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            other = padded[2 + dy : 2 + dy + img.shape[0], 2 + dx : 2 + dx + img.shape[1]]
            w = np.exp(-(dx * dx + dy * dy) / (2 * spatial**2) - (other - img) ** 2 / (2 * tonal**2))
            total += w * other
            weight += w
    return total / weight


# A guided filter by box filters (He, Sun and Tang).
def guided(img, guide, radius, eps):
    def box(a):
        return ndimage.uniform_filter(a, 2 * radius + 1)

    mean_i, mean_p = box(guide), box(img)
    covariance = box(guide * img) - mean_i * mean_p
    variance = box(guide * guide) - mean_i**2
    a = covariance / (variance + eps)
    b = mean_p - a * mean_i
    return box(a) * guide + box(b)


# An integral image and box sums (Viola and Jones).
def box_sums(img, k):
    table = np.zeros((img.shape[0] + 1, img.shape[1] + 1))
    table[1:, 1:] = img.cumsum(axis=0).cumsum(axis=1)
    return table[k:, k:] - table[:-k, k:] - table[k:, :-k] + table[:-k, :-k]


# Richardson and Lucy's deconvolution (scikit-image's richardson_lucy).
def richardson_lucy(img, kernel, iterations):
    estimate = np.full_like(img, 0.5)
    mirrored = kernel[::-1, ::-1]
    for _ in range(iterations):
        blurred = ndimage.convolve(estimate, kernel, mode="constant") + 1e-12
        estimate = estimate * ndimage.convolve(img / blurred, mirrored, mode="constant")
    return estimate


# Adaptive thresholds from local means (Sauvola and Pietikainen; scikit-image).
def sauvola(img, window, k):
    mean = ndimage.uniform_filter(img, window)
    square = ndimage.uniform_filter(img * img, window)
    deviation = np.sqrt(np.maximum(square - mean * mean, 0))
    threshold = mean * (1 + k * (deviation / 0.5 - 1))
    return img > threshold


# A Gaussian pyramid and its Laplacian (Burt and Adelson).
def laplacian_pyramid(img, levels):
    kernel = np.array([1, 4, 6, 4, 1]) / 16
    bands = []
    for _ in range(levels):
        low = ndimage.convolve1d(ndimage.convolve1d(img, kernel, axis=0), kernel, axis=1)
        bands.append(img - low)
        img = low[::2, ::2]
    return bands, img


# Oriented gradients' histograms for cells (Dalal and Triggs; scikit-image's hog).
def oriented_gradients(img, bins):
    gy, gx = np.gradient(img)
    magnitude, angle = np.hypot(gx, gy), np.rad2deg(np.arctan2(gy, gx)) % 180
    h, w = img.shape[0] // 4, img.shape[1] // 4
    cells = np.zeros((h, w, bins))
    index = np.minimum((angle / (180 / bins)).astype(int), bins - 1)
    for b in range(bins):
        selected = np.where(index == b, magnitude, 0)
        cells[:, :, b] = selected[: h * 4, : w * 4].reshape(h, 4, w, 4).sum(axis=(1, 3))
    return cells / np.sqrt((cells**2).sum(axis=2, keepdims=True) + 1e-10)


# Total variation denoising by gradient steps (Rudin, Osher and Fatemi).
def total_variation(img, weight, steps):
    u = img.copy()
    for _ in range(steps):
        ux = np.roll(u, -1, axis=1) - u
        uy = np.roll(u, -1, axis=0) - u
        norm = np.sqrt(ux**2 + uy**2 + 1e-6)
        px, py = ux / norm, uy / norm
        divergence = px - np.roll(px, 1, axis=1) + py - np.roll(py, 1, axis=0)
        u = u + 0.1 * (weight * divergence + img - u)
    return u


# Phase correlation of two shifted images (Kuglin and Hines; scikit-image's registration).
def phase_correlation(a, b):
    product = np.fft.fft2(a) * np.fft.fft2(b).conj()
    product /= np.maximum(np.abs(product), 1e-12)
    correlation = np.abs(np.fft.ifft2(product))
    peak = np.unravel_index(correlation.argmax(), correlation.shape)
    return np.array(peak), correlation.max()


CASES = [
    Case(canny_candidates, lambda r, n: (r.random((n, n)), 1.0, 0.5)),
    Case(unsharp, lambda r, n: (r.random((n, n)), 1.5, 0.8)),
    Case(bilateral, lambda r, n: (r.random((n, n)), 1.5, 0.2)),
    Case(guided, lambda r, n: (r.random((n, n)), r.random((n, n)), 1, 0.01)),
    Case(box_sums, lambda r, n: (r.random((n, n + 2)), 3)),
    Case(richardson_lucy, lambda r, n: (r.random((n, n)), np.full((3, 3), 1 / 9), 4)),
    Case(sauvola, lambda r, n: (r.random((n, n)), 5, 0.2)),
    Case(laplacian_pyramid, lambda r, n: (r.random((2 * n, 2 * n)), 2)),
    Case(oriented_gradients, lambda r, n: (r.random((2 * n, 2 * n)), 6)),
    Case(total_variation, lambda r, n: (r.random((n, n)), 0.3, 4)),
    Case(phase_correlation, lambda r, n: (r.random((n, n)), r.random((n, n)))),
]
