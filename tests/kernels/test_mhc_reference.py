"""mhc-torch/1 is what transformers runs; the oracle's single rounding is single."""

import numpy as np
import pytest
import torch

from bitgate.kernels.mhc import reference
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.types import Workload


def inputs_at(tokens: int, hidden: int, index: int = 0) -> Tensors:
    axes = (("hidden", hidden), ("streams", 4), ("tokens", tokens))
    return MHC_PRE.make_inputs(Workload(op="mhc_pre", axes=axes, dtype="bfloat16"), index)


def the_models_own(inputs: Tensors, *, sequence: bool) -> Tensors:
    """What the hyper-connection module of transformers gives, tokens as sequence or as batch."""
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

    hidden = inputs["residual"].shape[-1]
    module = DeepseekV4HyperConnection(DeepseekV4Config(hidden_size=hidden))
    with torch.no_grad():
        for name in ("fn", "scale", "base"):
            getattr(module, name).copy_(inputs[name])
        streams = inputs["residual"][None] if sequence else inputs["residual"][:, None]
        returned = module(streams)
    flat = [value.flatten(0, 1) for value in returned]
    return dict(zip(("post", "comb", "layer_input"), flat, strict=True))


@pytest.mark.parametrize("tokens", [1, 2, 3, 16, 33])
@pytest.mark.parametrize("hidden", [64, 320])
def test_the_reference_is_what_transformers_runs(tokens: int, hidden: int) -> None:
    for index, sequence in ((0, True), (1, False)):
        inputs = inputs_at(tokens, hidden, index)
        returned = reference.mhc_pre(**inputs, **dict(MHC_PRE.constants))
        expected = the_models_own(inputs, sequence=sequence)
        result = compare_tensors("model", expected, MHC_PRE.named_outputs(returned))
        assert result.equal, result.mismatches


def test_a_norm_over_one_stream_is_not_what_transformers_runs() -> None:
    """The control: the mean over hidden instead of over all streams gives other numbers."""
    inputs = inputs_at(3, 64)
    # With four times the epsilon-free mean of squares, the norm is half as large.
    returned = reference.mhc_pre(**{**inputs, "fn": inputs["fn"] / 2}, **dict(MHC_PRE.constants))
    result = compare_tensors(
        "model", the_models_own(inputs, sequence=True), MHC_PRE.named_outputs(returned)
    )
    assert {mismatch.tensor for mismatch in result.mismatches} == {"post", "comb", "layer_input"}


def test_rounding_once_is_not_rounding_twice() -> None:
    # Just above a tie of bfloat16, by less than float32 can see.
    value = torch.tensor(
        [1.0 + 2.0**-8 + 2.0**-40, -1.0 - 2.0**-8 - 2.0**-40, 1.0 + 2.0**-8, 0.0, 3.5],
        dtype=torch.float64,
    )
    once = reference.round_bf16_once(value).double()
    step = 2.0**-7
    assert once.tolist() == [1.0 + step, -1.0 - step, 1.0, 0.0, 3.5]
    assert value.float().to(torch.bfloat16).double().tolist()[0] == 1.0


def test_rounding_once_agrees_with_whole_numbers() -> None:
    rng = np.arange(1, 20_001, dtype=np.int64) * 7_919_777 % (1 << 40)
    value = torch.from_numpy(rng.astype(np.float64))
    exponent = torch.floor(torch.log2(value.clamp(min=1.0))) - 7
    unit = 2.0**exponent
    expected = torch.round(value / unit) * unit  # torch.round takes halves to even
    assert torch.equal(reference.round_bf16_once(value).double(), expected)
