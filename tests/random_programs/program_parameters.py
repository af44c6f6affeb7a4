"""What the parameters of functions may be in random programs, by the names of the parameters.

The placeholders are those of program_statements.py; `{call}` is the call itself, without an output.
"""

from __future__ import annotations

from types import MappingProxyType

LEFT_OUT = frozenset(
    [
        "array2string",
        "array_repr",
        "array_str",
        "busday_count",
        "busday_offset",
        "datetime_as_string",
        "einsum_path",
        "is_busday",
        "isnat",
        "may_share_memory",
        "save",
        "savetxt",
        "savez",
        "savez_compressed",
        "shares_memory",
        "argpartition",
        "empty_like",
        "apply_along_axis",
        "piecewise",
        "select",
        "linalg.eig",
        "linalg.eigh",
        "linalg.eigvals",
        "linalg.eigvalsh",
        "linalg.svd",
        "linalg.qr",
        "linalg.lstsq",
        "linalg.pinv",
        "linalg.cond",
        "linalg.svdvals",
        "linalg.matrix_rank",
        "linalg.tensorinv",
        "linalg.tensorsolve",
        "roots",
        "polyfit",
        "histogramdd",
        "histogram2d",
        "einsum",
    ]
)
"""Functions that refuse, whose results a library orders or rounds in its own order, or that other templates call."""

OPERANDS = (
    *("{x}",) * 6,
    *("{x1}",) * 4,
    "{x2}",
    "{x2}",
    "{x}.T",
    "{x1}[::-1]",
    "{x1}[::2]",
    "{x1}[:0]",
    "{x1}[:1]",
    "{x}.sum()",
    "{x}.max()",
    "{x}[...]",
    "np.array({c})",
    "{scalar}",
    "{list}",
    "{x}.tolist()",
    "{x1}[0]",
    "np.broadcast_to({x}, (2, *{last}.shape))",
    "np.asfortranarray({x})",
    "{x}[None]",
    "{c}",
)
"""What the first argument of a call may be."""

OTHERS = (*("{y}",) * 4, "{same}", "{same}", "{last}", "{list}", "{scalar}", "{c}", "{x}")
"""What a further array of a call may be."""

SQUARE = ("{x2} @ {last}.T + 40 * np.eye({last}.shape[0])", "{x2}[:2, :2]", "np.stack([{x2} @ {last}.T] * 2)")
SEVERAL = (
    "[{x}, {same}]",
    "({x}, {last})",
    "[{x1}, {same}, {last}]",
    "[{x}, {list}]",
    "({x},)",
    "np.stack([{x}, {same}])",
)
INTEGERS = ("0", "1", "-1", "2", "{k}", "np.int64(1)", "True")
FLAGS = ("True", "False", "1", "np.True_")
TYPES = ("{dt}", "{dt}", "{dt}", "float", "int", "complex", "bool", "'f4'", "'int16'", "None", "np.dtype('float32')")
AXES = (*("{axis}",) * 5, "None", "0", "-1", "(0,)", "(0, 1)", "(-1, 0)", "()", "1", "np.int64(0)")

PARAMETERS: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("axis", "axisa", "axisb", "axisc", "source", "destination"), AXES),
        **dict.fromkeys(("axis1", "axis2"), ("0", "1", "-1")),
        **dict.fromkeys(
            (
                "keepdims",
                "returned",
                "right",
                "copy",
                "equal_nan",
                "increasing",
                "bias",
                "rowvar",
                "sparse",
                "density",
                "invert",
                "assume_unique",
                "return_counts",
                "include_initial",
                "endpoint",
                "deg",
                "hermitian",
                "upper",
                "return_inverse",
                "return_index",
            ),
            FLAGS,
        ),
        **dict.fromkeys(("n", "N", "num"), ("0", "1", "2", "3", "5", "None")),
        **dict.fromkeys(("k", "offset", "m", "start", "decimals", "shift"), (*INTEGERS, "-2", "3")),
        **dict.fromkeys(("ddof", "correction"), ("0", "1", "2", "0.5", "-1", "np.float32(1)")),
        **dict.fromkeys(
            ("b", "v", "y", "x2", "a2", "ar2", "values", "test_elements", "fp", "fill_value", "arr2", "u"), OTHERS
        ),
        **dict.fromkeys(
            ("weights", "fweights", "aweights"), ("{same}", "{list}", "None", "np.abs({same})", "{last} * 0 + 2")
        ),
        **dict.fromkeys(
            ("to_end", "to_begin", "prepend", "append", "left", "val", "default", "fval"),
            ("{c}", "{list}", "{scalar}", "None"),
        ),
        **dict.fromkeys(("nan", "posinf", "neginf"), ("{c}", "None", "0.5", "-2")),
        **dict.fromkeys(("a_min", "a_max", "min", "max"), ("{c}", "{scalar}", "{y}", "None", "{list}", "0", "2")),
        **dict.fromkeys(("rtol", "atol", "tol"), ("0.5", "0", "1e-3", "{k}", "np.float32(0.25)")),
        **dict.fromkeys(
            ("indices", "obj", "ind"),
            (
                "0",
                "[0]",
                "[0, -1]",
                "np.array([0, 0])",
                "{i} % 2",
                "[[0], [-1]]",
                "[]",
                "np.argmax({last}, -1)",
                "np.argsort({last}, -1, kind='stable')",
            ),
        ),
        **dict.fromkeys(("s",), ("(2,)", "(3, 2)", "None", "(4,)")),
        **dict.fromkeys(
            ("dims", "shape", "new_shape"),
            ("{reshape}", "(2, 3)", "-1", "(-1, 1)", "{last}.shape", "{last}.size", "(1, *{last}.shape)"),
        ),
        "out": (
            "np.zeros_like({call})",
            "np.ones_like({call}, {dt})",
            "np.asfortranarray(np.zeros_like({call}))",
            "np.zeros((2, *np.shape({call})))[0]",
            "np.zeros_like({call}, complex)",
            "np.zeros_like({call})[...]",
        ),
        "where": ("{mask}", "{mask}", "True", "False", "[True]", "{last} != {last}", "np.array(True)"),
        "initial": ("{c}", "{scalar}", "0", "1", "-1.5"),
        "dtype": TYPES,
        "casting": ("'no'", "'equiv'", "'safe'", "'same_kind'", "'unsafe'"),
        "order": ("'C'", "'F'", "'A'", "'K'"),
        "mean": ("np.mean({last}, keepdims=True)", "0"),
        "axes": ("(1, 0)", "1", "(0, 1)", "None", "(-1, -2)", "([0], [0])", "(-1,)", "0"),
        "q": ("0.3", "50 / 100", "[0.25, 0.5]", "0", "1", "np.float32(0.7)", "np.array([[0.1], [0.9]])", "[1]"),
        "method": ("'{method}'",),
        "norm": ("'ortho'", "'forward'", "'backward'", "None"),
        "bins": ("3", "[0, 1, 2]", "[-1, 0.5, 4]", "np.array([0, 2, 5])", "'auto'"),
        "range": ("(0, 2)", "(-1, 1.5)", "None"),
        "mode": ("'same'", "'valid'", "'full'", "'wrap'", "'clip'", "'raise'", "'edge'", "'reflect'", "'symmetric'"),
        "kth": ("0", "-1", "[0, -1]"),
        "kind": ("'stable'", "None"),
        "stable": ("True", "None"),
        "repeats": ("2", "0", "[1]", "np.array([2])", "np.int8(3)", "[1] * {last}.size"),
        "reps": ("2", "(2, 1)", "0", "(1, 2, 1)", "[2]"),
        "pad_width": ("1", "(1, 2)", "((1, 0),)", "0", "np.array([1, 2])"),
        "indices_or_sections": ("1", "[1]", "2", "(0, 1)", "[1, 1]"),
        "ord": ("1", "2", "np.inf", "-np.inf", "0", "'fro'", "None", "3", "-1"),
        "trim": ("'f'", "'b'", "'fb'"),
        "discont": ("1", "None", "4.0"),
        "period": ("2", "6.5", "None"),
        "dx": ("0.5", "2", "np.float32(3)"),
        "side": ("'left'", "'right'"),
        "sorter": ("None",),
        "minlength": ("0", "7"),
        "bitorder": ("'big'", "'little'"),
        "edge_order": ("1", "2"),
        "base": ("2", "10.0", "0.5"),
        "stop": ("{c}", "{x}", "3"),
        "ndmin": ("2", "3"),
        "xp": ("[0, 1, 2]",),
        "varargs": ("2.0", "0.5"),
        "UPLO": ("'L'",),
        "roll": ("0",),
        "p": ("[1, 2, 3]",),
        "wrap": FLAGS,
        "condition": ("{mask}", "[True, False]", "{i} > 0"),
        "choices": ("[{c}, {last}]", "({last}, 3, {last})"),
        "type2": TYPES,
        "indexing": ("'ij'", "'xy'"),
        "sorted": ("True",),
        "reflect_type": ("'odd'",),
        "to": TYPES,
    }
)
"""What the parameters of each name may be; `{call}` is the call without an output."""

OF_FUNCTION: MappingProxyType[tuple[str, str], tuple[str, ...]] = MappingProxyType(
    {
        ("interp", "fp"): ("[1, 3, 2]", "[1, 2j, 3]", "np.array([1, 2, 0], np.float32)"),
        ("interp", "period"): ("2", "-3", "None"),
        ("percentile", "q"): ("30", "[10, 90]", "0", "100", "np.float32(70)"),
        ("nanpercentile", "q"): ("30", "[10, 90]", "0", "100"),
        ("expand_dims", "axis"): ("0", "-1", "(0, 2)", "1"),
        ("unravel_index", "indices"): ("{i} % 6", "3", "[0, 5]"),
        ("unravel_index", "shape"): ("(2, 3)", "6", "(3, 2)"),
        ("ravel_multi_index", "multi_index"): ("({i} % 2, {last} % 3)", "([0, 1], [2, 0])"),
        ("ravel_multi_index", "dims"): ("(2, 3)", "(4, 4)"),
        ("bincount", "x"): ("{i}.ravel() % 4", "[0, 1, 1]"),
        ("bincount", "weights"): ("{last}.ravel()", "{same}.ravel()"),
        ("choose", "out"): ("np.zeros_like({call})", "np.zeros({call}.shape, {dt})"),
        ("choose", "a"): ("{i} % 2", "0", "{b} * 1"),
        ("packbits", "a"): ("{x} != 0", "{b}", "{i} % 2"),
        ("unpackbits", "a"): ("({x} != 0).astype(np.uint8)",),
        ("digitize", "bins"): ("[0, 1, 2]", "[2, 1, 0]", "np.array([-1.5, 0.5])"),
        ("broadcast_to", "shape"): ("(2, *{last}.shape)", "{last}.shape"),
        ("searchsorted", "a"): ("np.sort({x1}.ravel())", "[0, 1, 2]", "np.sort({x1}.ravel())[::-1][::-1]"),
        ("linalg.matrix_power", "n"): ("0", "1", "2", "3", "-1"),
        ("count_nonzero", "axis"): ("{axis}", "None", "(0, 1)", "()"),
        ("einsum", "operands"): ("'ij->ji', {x2}",),
        ("apply_over_axes", "func"): ("np.sum", "np.max"),
        ("apply_over_axes", "axes"): ("0", "[0, 1]", "(-1,)"),
        ("can_cast", "from_"): ("{x}.dtype",),
        ("gradient", "f"): ("{x1}", "{x2}"),
        ("tile", "A"): OPERANDS,
        ("linalg.norm", "axis"): ("{axis}", "None", "(0, 1)", "(-1, 0)"),
        ("put", "v"): ("{c}",),
        ("convolve", "v"): ("[1, 2]", "{last}", "[0.5]"),
        ("correlate", "v"): ("[1, 2]", "{last}", "[0.5]"),
        ("polyval", "x"): ("{x}", "{c}", "{y}"),
        ("polyint", "k"): ("None", "1", "[2]"),
        ("vander", "N"): ("2", "3", "None", "0"),
        ("tensordot", "axes"): ("1", "0", "2", "([0], [0])", "([-1], [0])"),
        ("linalg.tensordot", "axes"): ("1", "0", "([0], [0])"),
        ("meshgrid", "copy"): ("True",),
        ("trim_zeros", "filt"): ("{x1}.ravel()", "{x2}", "{x1} * ({last} > 0)"),
        ("gradient", "axis"): ("{axis}", "(0, 1)", "None"),
        ("round", "decimals"): ("0", "1", "-1", "3"),
        ("around", "decimals"): ("0", "1", "-1", "3"),
        ("ix_", "args"): ("[0, 1], [1]", "{mask}", "[0], {list}"),
        ("lexsort", "keys"): ("({x1}, {same})", "[{x1}]", "{x2}"),
        ("block", "arrays"): ("[[{x2}, {same}]]", "[{x}, {same}]", "{x}", "[[{x1}], [{same}]]"),
        ("compress", "a"): OPERANDS,
        ("extract", "arr"): ("{x}", "{x1}", "{last}", "{same}"),
        ("apply_over_axes", "a"): ("{x1}", "{x2}"),
        ("take_along_axis", "indices"): (
            "np.argsort({last}, -1, kind='stable')",
            "np.zeros_like({last}, int)",
            "[[0]]",
            "{last}[..., :1].astype(int) * 0",
        ),
        ("take_along_axis", "arr"): ("{x1}", "{x2}"),
        ("copyto", "src"): (*OTHERS, "{x}"),
        ("putmask", "mask"): ("{mask}", "True", "{last}"),
        ("putmask", "values"): OTHERS,
        ("place", "mask"): ("{mask}", "{last}"),
        ("place", "vals"): ("[1, 2]", "{list}", "{c}", "{x1}"),
        ("put", "ind"): ("0", "[0, -1]", "np.array([0])", "[[0]]"),
        ("put_along_axis", "indices"): ("np.argmax({last}, 0)[None]", "np.zeros_like({last}, int)"),
        ("put_along_axis", "axis"): ("0", "-1"),
        ("dsplit", "ary"): ("np.stack([{x2}, {same}])", "{x2}[None]"),
        **{
            (name, parameter): SQUARE
            for name in ("det", "slogdet", "inv", "cholesky", "matrix_power", "solve")
            for name, parameter in ((f"linalg.{name}", "a"),)
        },
    }
)
"""What parameters of some functions may be."""

WRITTEN = ("{w}", "{w1}", "{w2}", "{w1}[::2]", "{w1}[0]", "{w1}.T", "{w1}[::-1]", "{w}[...]", "{w1}[{key}]")
"""What a function changes."""

CHANGING = MappingProxyType(
    {"copyto": "dst", "put": "a", "putmask": "a", "place": "arr", "put_along_axis": "arr", "fill_diagonal": "a"}
)
"""Functions that change their first argument, with its name."""
