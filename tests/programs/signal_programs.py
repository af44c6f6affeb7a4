"""Whole programs of signal processing."""

from __future__ import annotations

import numpy as np
from scipy import fft, signal

from tests.programs.case import Case, Generator


# Band-pass by zeroing Fourier coefficients (Numerical Recipes; SciPy's tutorial on fft).
def band_pass(x, rate, low, high):
    spectrum = np.fft.rfft(x)
    frequencies = np.fft.rfftfreq(len(x), 1 / rate)
    spectrum[(frequencies < low) | (frequencies > high)] = 0
    return np.fft.irfft(spectrum, len(x))


# Welch's power spectral density by hand (matplotlib.mlab's psd).
def power_density(x, size, rate):
    step = size // 2
    window = np.hanning(size)
    segments = np.lib.stride_tricks.sliding_window_view(x, size)[::step]
    segments = (segments - segments.mean(axis=1, keepdims=True)) * window
    power = np.abs(np.fft.rfft(segments, axis=1)) ** 2
    density = power.mean(axis=0) / (rate * (window**2).sum())
    density[1:-1] *= 2
    return np.fft.rfftfreq(size, 1 / rate), density


# A spectrogram in decibels with SciPy (librosa's amplitude_to_db).
def spectrogram_decibels(x, rate):
    frequencies, times, power = signal.spectrogram(x, rate, nperseg=16, noverlap=8)
    decibels = 10 * np.log10(np.maximum(power, 1e-10))
    return frequencies, times, np.maximum(decibels, decibels.max() - 80)


# Mel filter bank and cepstral coefficients (librosa's mfcc, by hand).
def cepstral_coefficients(x, rate, n_mels, n_coefficients):
    frames = np.lib.stride_tricks.sliding_window_view(x, 16)[::8] * np.hamming(16)
    power = np.abs(np.fft.rfft(frames, 32)) ** 2 / 32
    top = 2595 * np.log10(1 + rate / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, n_mels + 2) / 2595) - 1)
    bins = np.floor(33 * points / rate).astype(int)
    bank = np.zeros((n_mels, 17))
    for m in range(1, n_mels + 1):
        for k in range(bins[m - 1], bins[m]):
            bank[m - 1, k] = (k - bins[m - 1]) / max(bins[m] - bins[m - 1], 1)
        for k in range(bins[m], bins[m + 1]):
            bank[m - 1, k] = (bins[m + 1] - k) / max(bins[m + 1] - bins[m], 1)
    energies = power @ bank.T
    energies = np.where(energies == 0, np.finfo(float).eps, energies)
    return fft.dct(np.log(energies), type=2, axis=1, norm="ortho")[:, :n_coefficients]


# Envelope and instantaneous frequency from the analytic signal (SciPy's hilbert example).
def envelope_and_frequency(x, rate):
    analytic = signal.hilbert(x)
    phase = np.unwrap(np.angle(analytic))
    return np.abs(analytic), np.diff(phase) / (2 * np.pi) * rate


# A Butterworth low-pass forwards and backwards (SciPy cookbook: "FiltFilt").
def smooth_forwards_and_backwards(x, cutoff):
    b, a = signal.butter(3, 0.2)
    padded = np.concatenate([2 * x[0] - x[1:6][::-1], x, 2 * x[-1] - x[-6:-1][::-1]])
    filtered = signal.filtfilt(b, a, padded)
    return filtered[5:-5] * cutoff


# Least mean squares adaptive filter (Widrow and Hoff; Haykin).
def adaptive_filter(x, desired, taps, rate):
    weights = np.zeros(taps)
    error = np.zeros(len(x))
    for n in range(taps, len(x)):
        window = x[n - taps : n][::-1]
        error[n] = desired[n] - weights @ window
        weights = weights + rate * error[n] * window
    return weights, error


# Pitch by autocorrelation (YIN's first steps; de Cheveigne and Kawahara).
def difference_function(x, lags):
    differences = np.zeros(lags)
    for lag in range(1, lags):
        differences[lag] = ((x[:-lag] - x[lag:]) ** 2).sum()
    normalised = differences[1:] * np.arange(1, lags) / np.cumsum(differences[1:])
    return normalised, normalised.argmin() + 1


# Overlap-add reconstruction from a modified short-time transform (Griffin and Lim; MATLAB's istft).
def overlap_add(x, gain):
    size, step = 8, 4
    window = np.hanning(size + 1)[:-1]
    starts = range(0, len(x) - size + 1, step)
    out, weight = np.zeros(len(x)), np.zeros(len(x))
    for start in starts:
        spectrum = np.fft.rfft(x[start : start + size] * window)
        spectrum *= gain
        out[start : start + size] += np.fft.irfft(spectrum, size) * window
        weight[start : start + size] += window**2
    return out / np.where(weight > 1e-8, weight, 1)


def _tone(r: Generator, n: int) -> np.ndarray:
    t = np.arange(n * 8) / 8
    return np.sin(t) + 0.3 * r.normal(size=n * 8)


CASES = [
    Case(band_pass, lambda r, n: (_tone(r, n), 100.0, 5.0, 20.0)),
    Case(power_density, lambda r, n: (_tone(r, n), 16, 100.0)),
    Case(spectrogram_decibels, lambda r, n: (_tone(r, n), 100.0)),
    Case(cepstral_coefficients, lambda r, n: (_tone(r, n), 800.0, 6, 4)),
    Case(envelope_and_frequency, lambda r, n: (_tone(r, n), 50.0)),
    Case(smooth_forwards_and_backwards, lambda r, n: (_tone(r, n), 0.5)),
    Case(adaptive_filter, lambda r, n: (r.normal(size=3 * n), r.normal(size=3 * n), 4, 0.05)),
    Case(difference_function, lambda r, n: (_tone(r, n), 12)),
    Case(overlap_add, lambda r, n: (r.normal(size=n * 4), r.random(5))),
]
