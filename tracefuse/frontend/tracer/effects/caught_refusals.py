"""Refusals that a handler of the traced function catches, as `except Exception` does.

The plain program does not raise there, so that the trace has followed another branch than the program. Such a trace
ends with the refusal, whatever the handler did.

Must not know: overlays of values.
"""

from __future__ import annotations

import os
import sysconfig
from types import FrameType

from tracefuse import source
from tracefuse.errors import TracefuseError
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.record.recorder import Recorder, current

_OF_PYTHON = sysconfig.get_path("stdlib")


def _notice(error: TracefuseError) -> None:
    recorder = current.get()
    if recorder is not None and recorder.alive:
        settle(recorder)
        if recorder.body is not None:  # of one of tracefuse's loops or branches; other loops are unrolled
            error.runs_function = False
        recorder.refusals.append(error)


TracefuseError.notice = staticmethod(_notice)


def settle(recorder: Recorder) -> None:
    """Notes which refusals the user's code has caught so far, and releases the frames of all."""
    for refusal in recorder.refusals:
        traceback = refusal.__traceback__
        if traceback is not None and _is_of_user(traceback.tb_frame):  # the outermost frame that it has reached
            refusal.runs_function = True
            recorder.caught_refusal = recorder.caught_refusal or refusal
        refusal.__traceback__ = None


def check(recorder: Recorder) -> None:
    """Raises the first refusal that the user's code has caught."""
    caught = first_caught(recorder, None)
    if caught is not None:
        raise caught


def first_caught(recorder: Recorder, error: BaseException | None) -> TracefuseError | None:
    """Returns the first refusal that the user's code has caught. error: that the trace ends with, if any."""
    traceback = None if error is None else error.__traceback__
    settle(recorder)
    if error is not None:
        error.__traceback__ = traceback
    caught, recorder.caught_refusal = recorder.caught_refusal, None
    recorder.refusals.clear()
    is_refusal = isinstance(error, TracefuseError) and error.is_refusal
    return None if is_refusal else caught


def _is_of_user(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if source.is_internal(file) or (file.startswith(_OF_PYTHON) and f"{os.sep}site-packages{os.sep}" not in file):
        return False
    table = getattr(frame.f_globals, "table", frame.f_globals)  # a clone sees its globals through a view
    return not is_of_library(table.get("__name__"))
