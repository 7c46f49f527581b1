"""One prepared run for a borrowed accelerator: which bits it computes, and how long it takes.

- `run`: the sections in their order, within a budget of time, and the files they leave.
- `rows`: what a check, a timing and an answer are, as plain JSON.
- `sections`: the catalogue of sections; add yours there.
- `fixtures`, `pipelines`, `questions`, `tiles`, `timings`: the sections themselves.
- `inputs`: the integers of `kernels.data` made on the device, for layers of full size.

Nothing here needs more than torch, Triton, NumPy and the standard library, so that it runs inside
an engine's image or on a node without a network. `bitgate records import device-check` turns what
it leaves into records.
"""
