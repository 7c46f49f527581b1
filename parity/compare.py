"""Comparing sets of tensors, and whole bundles, exhaustively on both sides.

The order is fixed: provenance, completeness, layout, digest, bits, class; numbers only explain.
"""

from collections.abc import Iterator, Mapping

import torch

from bitgate.kernels.moe.roundings import across
from bitgate.parity.bits import compare_tensor
from bitgate.parity.bundle import Bundle, Frame
from bitgate.parity.bundle_format import TokensLine
from bitgate.parity.compare_numbers import Origins, numbers
from bitgate.parity.compare_report import (
    FieldDifference,
    Report,
    ReportVerdict,
    Row,
    TensorDifference,
)
from bitgate.records.types import BoundaryClass, Comparison, Mismatch, TensorMeta

__all__ = ["Report", "Row", "compare_bundles", "compare_tensors"]


def compare_tensors(
    subject: str, expected: Mapping[str, torch.Tensor], actual: Mapping[str, torch.Tensor]
) -> Comparison:
    """Compare every tensor of both sides bit for bit; a name on one side only is a mismatch.

    `expected` and `compared` count tensors that hold elements. Empty tensors must agree in dtype
    and shape, but they count as nothing: a comparison of empty tensors alone is never equal.
    """
    mismatches: list[Mismatch] = []
    compared = 0
    for name, wanted in expected.items():
        if name not in actual:
            detail = f"expected {wanted.dtype} of shape {tuple(wanted.shape)}, got nothing"
            mismatches.append(Mismatch(tensor=name, kind="missing", detail=detail))
            continue
        mismatch = compare_tensor(name, wanted, actual[name])
        if mismatch is not None:
            mismatches.append(mismatch)
        compared += wanted.numel() > 0
    for name in actual:
        if name not in expected:
            detail = f"expected no tensor of that name; the expected ones are {sorted(expected)}"
            mismatches.append(Mismatch(tensor=name, kind="unexpected", detail=detail))
    return Comparison(
        subject=subject,
        compared=compared,
        expected=sum(tensor.numel() > 0 for tensor in expected.values()),
        mismatches=tuple(mismatches),
    )


def compare_bundles(expected: Bundle, actual: Bundle) -> Report:
    """Every boundary of every step of two bundles; what only one of them has is `missing`.

    Bundles of different models, weights, prompts, tap profiles or ranks are incomparable: the
    report names the fields, and every row is `incomparable`.
    """
    refused = tuple(_differences(_identity(expected), _identity(actual)))
    left = {(frame.step, frame.boundary.key): frame for frame in expected.frames()}
    right = {(frame.step, frame.boundary.key): frame for frame in actual.frames()}
    whole = left | right  # in the order of the expected bundle, then what only the other has
    if refused:
        rows = [_without_values(frame, "incomparable", "provenance") for frame in whole.values()]
    else:
        origins = Origins(expected, actual)
        rows = [
            _row(left[key], right[key], origins)
            if key in left and key in right
            else _without_values(frame, "missing", "in one bundle only")
            for key, frame in whole.items()
        ]
    answers = () if refused else tuple(_answers(expected.tokens, actual.tokens))
    return Report(
        verdict=_verdict(rows, bool(refused), bool(answers)),
        expected_sha256=expected.sha256,
        actual_sha256=actual.sha256,
        refused=refused,
        noted=tuple(_differences(_circumstances(expected), _circumstances(actual))),
        answers=answers,
        rows=tuple(rows),
    )


def _verdict(rows: list[Row], refused: bool, answers: bool) -> ReportVerdict:  # noqa: FBT001
    kinds = {row.kind for row in rows}
    if refused or not rows:
        return "incomparable"
    if answers or kinds - {"equal", "incomparable"}:
        return "differs"
    return "incomparable" if "incomparable" in kinds else "equal"


def _identity(bundle: Bundle) -> dict[str, str]:
    """What must agree before two bundles may be compared."""
    manifest = bundle.manifest
    facts = {
        "model_type": manifest.model.model_type,
        "config_sha256": manifest.model.config_sha256,
        "weights_sha256": manifest.model.weights_sha256,
        "requests": str(manifest.requests),
    }
    facts |= {f"tap_profile.{name}": value for name, value in manifest.tap_profile}
    facts |= {f"parallel.{name}": value for name, value in manifest.parallel}
    return facts | {
        f"request {line.request}: prompt_token_ids": str(list(line.prompt_token_ids))
        for line in bundle.tokens
    }


def _circumstances(bundle: Bundle) -> dict[str, str]:
    """What may differ, and is worth knowing when the bits do."""
    manifest = bundle.manifest
    facts = dict(manifest.environment.comparability)
    facts |= {f"library:{name}": value for name, value in manifest.environment.libraries}
    facts |= {f"implementation.{name}": value for name, value in manifest.implementation}
    facts |= {"compile_cache": str(manifest.compile_cache), "bitgate": manifest.producer.version}
    return facts


def _differences(left: dict[str, str], right: dict[str, str]) -> Iterator[FieldDifference]:
    for field in dict.fromkeys([*left, *right]):
        wanted, found = left.get(field, "absent"), right.get(field, "absent")
        if wanted != found:
            yield FieldDifference(field=field, expected=wanted, actual=found)


def _answers(
    left: tuple[TokensLine, ...], right: tuple[TokensLine, ...]
) -> Iterator[FieldDifference]:
    for wanted, found in zip(left, right, strict=True):
        for name in ("token_ids", "logprobs"):
            one, two = getattr(wanted, name), getattr(found, name)
            if one != two:
                yield FieldDifference(
                    field=f"request {wanted.request}: {name}",
                    expected=str(list(one)),
                    actual=str(list(two)),
                )


def _without_values(frame: Frame, kind: BoundaryClass, note: str) -> Row:
    return Row(step=frame.step, boundary=frame.boundary, kind=kind, compared=0, note=note)


def _row(expected: Frame, actual: Frame, origins: Origins) -> Row:
    for name in ("op", "contract", "constants", "closed"):
        wanted, found = getattr(expected, name), getattr(actual, name)
        if wanted != found:
            note = f"{name}: expected {wanted}, got {found}"
            if name == "contract":
                note += f"; {across(str(wanted), str(found))}"
            return _without_values(expected, "incomparable", note)
    return _compare_frames(expected, actual, origins)


def _compare_frames(expected: Frame, actual: Frame, origins: Origins) -> Row:
    left = {meta.name: meta for meta in expected.tensors}
    right = {meta.name: meta for meta in actual.tensors}
    differences = []
    compared = 0
    for name in dict.fromkeys([*left, *right]):
        wanted, found = left.get(name), right.get(name)
        compared += bool(wanted and found and 0 not in wanted.shape)
        difference = _difference(expected, actual, wanted, found, origins)
        if difference is not None:
            differences.append(difference)
    if not compared and not differences:
        return _without_values(expected, "incomparable", "no tensor holds an element")
    note = (
        ""
        if expected.mutated == actual.mutated
        else (f"inputs changed during the call: expected {expected.mutated}, got {actual.mutated}")
    )
    return Row(
        step=expected.step,
        boundary=expected.boundary,
        kind=_class(differences, closed=expected.closed, note=note),
        compared=compared,
        differences=tuple(differences),
        note=note,
    )


def _class(differences: list[TensorDifference], *, closed: bool, note: str) -> BoundaryClass:
    """Inputs that the call changed are results of it, so a difference in them is one of those."""
    roles = {item.role for item in differences}
    if not roles and not note:
        return "equal"
    if "in" in roles:
        return "victim"
    if roles & {"state", "param"}:
        return "state-suspect"
    return "culprit" if closed else "state-suspect"


def _difference(
    expected: Frame,
    actual: Frame,
    wanted: TensorMeta | None,
    found: TensorMeta | None,
    origins: Origins,
) -> TensorDifference | None:
    """How one tensor differs; strides do not count, for bits are compared in logical order."""
    present = wanted or found
    if present is None or _same(wanted, found):
        return None
    mismatch: Mismatch | None = None
    hints: tuple[str, ...] = ()
    explained: tuple[tuple[str, str], ...] = ()
    if wanted is None or found is None:
        mismatch = Mismatch(
            tensor=present.name,
            kind="missing" if found is None else "unexpected",
            detail="in one bundle only",
        )
    else:
        if expected.kept and actual.kept:
            before, after = expected.load(wanted.name), actual.load(found.name)
            mismatch = compare_tensor(wanted.name, before, after)
            explained = numbers(before, after)
        if found.role == "out":
            hints = origins.hints(actual, found)
    return TensorDifference(
        name=present.name,
        role=present.role,
        expected_digest=wanted.digest if wanted else None,
        actual_digest=found.digest if found else None,
        mismatch=mismatch,
        hints=hints,
        numbers=explained,
    )


def _same(wanted: TensorMeta | None, found: TensorMeta | None) -> bool:
    if wanted is None or found is None:
        return False
    one = (wanted.role, wanted.dtype, wanted.shape, wanted.digest)
    return one == (found.role, found.dtype, found.shape, found.digest)
