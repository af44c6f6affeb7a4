"""Optimizers and training loops that keep state in objects, mixins, groups of parameters and callbacks."""

from __future__ import annotations

import functools
from collections import defaultdict

import numpy as np

from tests.programs.case import Case


# Robbins and Monro's schedule by a mixin; PyTorch's schedulers look alike.
class ScheduleMixin:
    rate = 0.5
    epoch = 0

    def next_rate(self):
        self.epoch += 1
        self.rate = self.rate / (1 + 0.1 * self.epoch)
        return self.rate


class ClipMixin:
    clip = 1.0

    def clipped(self, g):
        norm = np.sqrt((g**2).sum())
        return g * (self.clip / norm) if norm > self.clip else g


class ClippedSgd(ScheduleMixin, ClipMixin):
    def __init__(self, w):
        self.w = w

    def step(self, g):
        self.w -= self.next_rate() * self.clipped(g)
        return self.w


class NesterovSgd(ClippedSgd):
    def __init__(self, w):
        super().__init__(w)
        self.velocity = np.zeros_like(w)

    def step(self, g):
        self.velocity *= 0.9
        self.velocity += g
        return super().step(g + 0.9 * self.velocity)


# Duchi's AdaGrad with groups of parameters, as torch.optim has them.
class AdaGrad:
    def __init__(self, groups):
        self.groups = groups
        self.state = defaultdict(dict)

    def step(self, grads):
        for k, group in enumerate(self.groups):
            for name, p in group["params"].items():
                state = self.state[k, name]
                if not state:
                    state["sum"] = np.zeros_like(p)
                    state["step"] = 0
                state["step"] += 1
                g = grads[name] + group["decay"] * p
                state["sum"] += g * g
                p -= group["lr"] * g / (np.sqrt(state["sum"]) + 1e-10)
        return sum(p.sum() for group in self.groups for p in group["params"].values())


# A context manager that counts and restores.
class scaled_by:
    def __init__(self, model, factor):
        self.model, self.factor = model, factor

    def __enter__(self):
        self.saved = self.model.scale
        self.model.scale = self.saved * self.factor
        return self.model

    def __exit__(self, *problem):
        self.model.scale = self.saved
        self.model.uses += 1


class Model:
    def __init__(self, w):
        self.w, self.scale, self.uses = w, 1.0, 0

    def __matmul__(self, x):
        return self.scale * (self.w @ x)

    def predict(self, x):
        with scaled_by(self, 0.5) as half:
            low = half @ x
        return low + self @ x


# functools.partial over a module-level update.
def _decayed(rate, memory, x):
    memory[:] = rate * memory + (1 - rate) * x
    return memory.sum()


def make_decayed(rate, n):
    return functools.partial(_decayed, rate, np.zeros(n))


# Callbacks in a list, as Keras has them.
class Trainer:
    def __init__(self, w):
        self.w = w
        self.callbacks = [self.record, self.shrink]
        self.losses = []
        self.lr = 0.1

    def record(self, loss):
        self.losses.append(loss)

    def shrink(self, loss):
        if len(self.losses) > 3 and self.losses[-1] > self.losses[-2]:
            self.lr *= 0.5

    def fit(self, x, y):
        error = x @ self.w - y
        loss = (error**2).mean()
        self.w -= self.lr * x.T @ error / len(y)
        for callback in self.callbacks:
            callback(loss)
        return loss


CASES = [
    Case(
        ClippedSgd.step,
        lambda r, n: (r.normal(size=n),),
        instance=lambda r, n: ClippedSgd(np.ones(n)),
        between=lambda s, r: setattr(s, "clip", r.random()) if r.random() < 0.3 else None,
    ),
    Case(NesterovSgd.step, lambda r, n: (r.normal(size=n),), instance=lambda r, n: NesterovSgd(np.ones(n))),
    Case(
        AdaGrad.step,
        lambda r, n: ({"w": r.normal(size=n), "b": r.normal(size=2)},),
        instance=lambda r, n: AdaGrad(
            [
                {"params": {"w": np.ones(n)}, "lr": 0.1, "decay": 0.0},
                {"params": {"b": np.ones(2)}, "lr": 0.2, "decay": 0.1},
            ]
        ),
        between=lambda s, r: s.groups[0].update(lr=s.groups[0]["lr"] * 0.9),
    ),
    Case(Model.predict, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Model(r.normal(size=(3, n)))),
    Case(make_decayed, lambda r, n: (r.normal(size=n),), closure=lambda r, n: (0.9, n)),
    Case(
        Trainer.fit,
        lambda r, n: (r.normal(size=(n, 3)), r.normal(size=n)),
        instance=lambda r, n: Trainer(np.zeros(3)),
    ),
]
