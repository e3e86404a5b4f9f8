"""A network that runs: the laid-out layers, their tensors, and one pass over them.

network = Network("yolov4.cfg", "yolov4.weights", device="cuda")
outputs = network.layer_outputs(x)                 # one tensor a layer
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from darknetpy import ptfile
from darknetpy.config import Cfg
from darknetpy.errors import ConfigError, UsageError, WeightsError
from darknetpy.layers import ForwardContext, Layer, Structure, TensorSpec, read_structure
from darknetpy.passes import Pass, forward, last_use
from darknetpy.weights import Block, Header, WeightsFile, read_weights, write_weights

ONE_WAY = (".onnx", ".torchscript", ".safetensors")
"""Files of a network that other programs read."""


class LayerTensors(nn.Module):
    """The tensors of one layer by name; a dotted name makes a sub-layer. Statistics are buffers."""

    def __init__(self, specs: Iterable[TensorSpec]):
        super().__init__()
        parts: dict[str, list[TensorSpec]] = {}
        for spec in specs:
            head, dot, rest = spec.name.partition(".")
            if dot:
                parts.setdefault(head, []).append(replace(spec, name=rest))
            elif spec.trained:
                self.register_parameter(head, nn.Parameter(_initial(spec)))
            else:
                self.register_buffer(head, _initial(spec))
        for name, inner in parts.items():
            self.add_module(name, LayerTensors(inner))

    def get(self, name: str) -> Tensor:
        """The tensor with a (dotted) name."""
        here = self
        *modules, last = name.split(".")
        for module in modules:
            here = getattr(here, module)
        return getattr(here, last)


def _initial(spec: TensorSpec) -> Tensor:
    """Darknet's initial values, from torch's global generator."""
    kind, *numbers = spec.init
    if kind == "constant":
        return torch.full(spec.shape, float(numbers[0]))
    scale, mean = numbers
    return torch.empty(spec.shape).uniform_(-1.0, 1.0).mul_(scale).add_(mean)


class Network(nn.Module):
    """A Darknet network with its weights.

    Args:
        cfg: path of a cfg file, or one parsed already.
        weights: path of a `.weights` or `.pt` file; None keeps Darknet's random initial values.
        device: where the tensors live.
        strict: exactly Darknet, quirks included.
        overrides: `section[#n].key=value` words.
        training: lay out with the cfg's own batch; the mode `train()`/`eval()` is set accordingly.
        batch: rows of a pass that the layout announces (any number of rows can be run).
        time_steps: length of sequences (rows are time-major).

    Raises ConfigError, WeightsError, MissingFileError.
    """

    def __init__(
        self,
        cfg: str | os.PathLike | Cfg,
        weights: str | os.PathLike | None = None,
        device: str | torch.device = "cpu",
        strict: bool = False,
        *,
        overrides: Iterable[str] = (),
        training: bool = False,
        batch: int = 1,
        time_steps: int | None = None,
    ):
        super().__init__()
        structure = read_structure(cfg, strict, overrides, None if training else batch, time_steps)
        self._assemble(structure)
        self.header = Header()
        if weights is not None:
            self.load_weights(weights)
        self.to(device)
        self.train(training)

    @classmethod
    def from_structure(cls, structure: Structure, device: str | torch.device = "cpu") -> Network:
        """A network with random weights from a layout that exists already."""
        network = cls.__new__(cls)
        nn.Module.__init__(network)
        network._assemble(structure)
        network.header = Header()
        network.to(device)
        return network.train(structure.training)

    def _assemble(self, structure: Structure) -> None:
        structure.check()
        _check_memory(structure)
        self.structure, self.strict = structure, structure.strict
        self.net, self.layers = structure.net, structure.layers
        self.names: list[str] = []
        self.time_steps = structure.time_steps
        self.slots = nn.ModuleList(LayerTensors(layer.tensors()) for layer in self.layers)
        self.states: list[dict] = [{} for _ in self.layers]
        self.last_use = last_use(self.layers)
        self.checkpointing = False
        self._fused: list | None = None
        self.frozen_before = _frozen_before(self.layers) if structure.training else 0

    # --- tensors -------------------------------------------------------------------------------------------------

    def tensors_of(self, index: int) -> LayerTensors:
        """The tensors that layer `index` computes with: its own, or those of the layer it shares with."""
        shares = self.layers[index].shares
        return self.slots[index if shares is None else shares]

    def tensors_for(self, index: int, fused: bool) -> Any:
        """The tensors that a pass gives to layer `index`, with batch normalisation folded in or not."""
        return self._fused[index] if fused and self._fused else self.tensors_of(index)

    def named_tensors(self) -> Iterator[tuple[Layer, TensorSpec, Tensor]]:
        """Every owned tensor with its layer and spec, in the order of a `.weights` file."""
        for layer, slot in zip(self.layers, self.slots, strict=True):
            for spec in layer.tensors():
                yield layer, spec, slot.get(spec.name)

    @property
    def device(self) -> torch.device:
        return next(self.parameters(), torch.empty(0)).device

    @property
    def seen(self) -> int:
        """Training images so far, as the loaded file says."""
        return self.header.seen

    def load_weights(self, path: str | os.PathLike, cutoff: int | None = None) -> WeightsFile:
        """Read a `.weights` or `.pt` file into the network. Raises WeightsError and leaves the tensors as they were.

        `cutoff`: only layers before this one, whatever follows in the file (Darknet: `load_weights_upto`).
        """
        if os.fspath(path).lower().endswith(ONE_WAY):
            raise WeightsError(
                "is written for other programs and not read back", file=path, remedy="give .weights or .pt"
            )
        layout = [block for block in self.layout() if cutoff is None or block.layer < cutoff]
        named = ptfile.is_pt(path)
        if named:
            loaded = ptfile.read_pt(path, layout)
        else:
            loaded = read_weights(path, layout, self.strict, len(layout), goes_on=cutoff is not None)
        self.assign(loaded, named)
        return loaded

    def assign(self, loaded: WeightsFile, named: bool = False) -> None:
        """Take over what was read from a file; `named` arrays are laid out as the network's own tensors."""
        by_layer: dict[int, dict] = {}
        for (index, name), array in loaded.arrays.items():
            by_layer.setdefault(index, {})[name] = array
        cut = {(index, name) for index, name, _ in loaded.cut_inside}
        with torch.no_grad():
            for index, arrays in by_layer.items():
                if not named and not any((index, name) in cut for name in arrays):
                    arrays = self.layers[index].after_read(arrays, loaded.header.transpose)
                for name, array in arrays.items():
                    source = torch.from_numpy(array.copy())
                    self.slots[index].get(name).view(-1)[: source.numel()].copy_(source.view(-1))
        self.header, self.names, self._fused = loaded.header, loaded.names, None

    def save_weights(
        self, path: str | os.PathLike, header: Header | None = None, cutoff: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """Write a `.weights` file, or a `.pt` by its suffix (Darknet: `save_weights_upto`).

        Args:
            header: version and seen; None: as loaded, so that reading and writing gives the same bytes.
            cutoff: only layers before this one.
            names: of the classes, for a `.pt`; None: as loaded.
        """
        header = header or self.header
        if ptfile.is_pt(path):
            arrays = {f"{layer.index}.{spec.name}": tensor for layer, spec, tensor in self.stored_tensors(cutoff)}
            ptfile.write_pt(path, self.structure.cfg.text, header, arrays, self.names if names is None else names)
        else:
            write_weights(path, header, (tensor.numpy() for _, _, tensor in self.file_order(header, cutoff)))

    def stored_tensors(self, cutoff: int | None = None) -> Iterator[tuple[Layer, TensorSpec, Tensor]]:
        """The tensors that files hold, on the CPU; those of layers before `cutoff`."""
        for layer, spec, tensor in self.named_tensors():
            if spec.stored and (cutoff is None or layer.index < cutoff):
                yield layer, spec, tensor.detach().cpu()

    def file_order(self, header: Header, cutoff: int | None = None) -> Iterator[tuple[Layer, TensorSpec, Tensor]]:
        """The stored tensors as a `.weights` file of that version holds them."""
        for layer, spec, tensor in self.stored_tensors(cutoff):
            turned = header.transpose and layer.is_dense and spec.name.endswith("weights")
            yield layer, spec, tensor.t() if turned else tensor

    def layout(self) -> list[Block]:
        """What a `.weights` file of this network consists of, layer by layer."""
        return [_block(layer) for layer in self.layers]

    # --- passes --------------------------------------------------------------------------------------------------

    def reset_state(self) -> None:
        """Forget what recurrent layers remember from earlier calls (Darknet: `reset_rnn`)."""
        self.states = [{} for _ in self.layers]

    @torch.no_grad()
    def forget(self, sequences: Tensor) -> None:
        """Forget what recurrent layers remember of some sequences (B,) of a batch, where the mask is true."""
        self.states = _without(self.states, sequences)

    def fuse(self) -> None:
        """Fold batch normalisation into the weights that inference uses (Darknet: `fuse_conv_batchnorm`)."""
        if self._fused is None:
            with torch.no_grad():
                self._fused = [
                    layer.fuse(self.tensors_of(layer.index)) if layer.shares is None else None for layer in self.layers
                ]
                for layer in self.layers:
                    if layer.shares is not None:
                        self._fused[layer.index] = self._fused[layer.shares]

    def train(self, mode: bool = True) -> Network:
        self._fused = None
        return super().train(mode)

    def _apply(self, fn, recurse: bool = True):
        self._fused = None
        self.reset_state()
        return super()._apply(fn, recurse)

    @torch.no_grad()
    def layer_outputs(self, x: Tensor, fused: bool = False) -> list[Tensor]:
        """Output of every layer for input `x` (B, C, H, W) or (B, inputs), as inference computes them.

        State of recurrent layers is kept between calls; `fused` folds batch normalisation first.
        """
        was_training = self.training
        self.train(False)
        try:
            if fused:
                self.fuse()
            outputs = self.run(x, keep_all=True, fused=fused).outputs
            return [output.detach() for output in outputs]  # type: ignore[union-attr]
        finally:
            self.train(was_training)

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Pass:
        """A pass for inference: BN folded, outputs freed as soon as no later layer reads them; heads' are kept."""
        self.fuse()
        return self.run(x, fused=True)

    def run(
        self, x: Tensor, context: ForwardContext | None = None, *, keep_all: bool = False, fused: bool = False,
        layers: int | None = None,
    ) -> Pass:  # fmt: skip
        """One pass over all layers (Darknet: `forward_network`).

        Args:
            x: (B, C, H, W) in 0..1, or (B, inputs).
            context: counters and truth of training; None for inference.
            keep_all: keep every output instead of freeing it after its last reader.
            fused: use the tensors made by `fuse`. layers: run only so many, the first ones.
        """
        self._check_input(x)
        if fused:
            self.fuse()
        return forward(self, x, self._begin(x, context, fused), keep_all, self.layers[:layers])

    def forward(self, x: Tensor, context: ForwardContext | None = None) -> Pass:
        return self.run(x, context)

    def _begin(self, x: Tensor, context: ForwardContext | None, fused: bool) -> ForwardContext:
        context = context or ForwardContext(training=False)
        context.outputs, context.strict, context.fused = [], self.strict, fused
        context.time_steps = self.time_steps
        context.net_h, context.net_w = (x.shape[2], x.shape[3]) if x.dim() == 4 else (self.net.height, self.net.width)
        return context

    def _check_input(self, x: Tensor) -> None:
        channels = self.net.channels
        if x.dim() == 4 and channels and x.shape[1] != channels:
            raise UsageError(f"the network takes {channels} channels, the input has {x.shape[1]}")
        if x.dim() not in (2, 4):
            raise UsageError(f"the input must be (B, C, H, W) or (B, inputs), not {tuple(x.shape)}")

    def __deepcopy__(self, memo) -> Network:
        """A copy that shares the immutable description and owns its tensors."""
        twin = Network.from_structure(self.structure, self.device)
        twin.load_state_dict(self.state_dict())
        twin.header, twin.frozen_before = self.header, self.frozen_before
        twin.train(self.training)
        return twin


def _without(state, sequences: Tensor):
    """A structure of tensors with the rows of some sequences zero; what has no such rows stays."""
    if isinstance(state, Tensor):
        if state.dim() == 0 or len(state) != len(sequences):
            return state
        return state.masked_fill(sequences.view(-1, *(1,) * (state.dim() - 1)), 0.0)
    if isinstance(state, dict):
        return {key: _without(part, sequences) for key, part in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_without(part, sequences) for part in state)
    return state


def _block(layer: Layer) -> Block:
    """The arrays of a layer that a file gives, and those that it may hold unread (`dontload`)."""
    loaded = [(spec.name, spec.shape) for spec in layer.loaded_tensors()]
    names = {name for name, _ in loaded}
    passed_over = [spec.name for spec in layer.tensors() if spec.stored and spec.name not in names]
    return Block(layer.index, layer.type, loaded, passed_over)


def _frozen_before(layers: list[Layer]) -> int:
    """Layers before the last `stopbackward=1` are frozen: they run as in inference (Darknet: `last_stop_backward`)."""
    return max((layer.index for layer in layers if layer.options.stopbackward == 1), default=0)


def _check_memory(structure: Structure) -> None:
    """Refuse a network that this machine cannot hold, before anything is allocated."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return
    parameters = 4 * sum(spec.count for layer in structure.layers for spec in layer.tensors())
    largest = max(structure.layers, key=lambda layer: layer.outputs)
    if parameters > physical or 4 * largest.outputs > physical:
        biggest = max(structure.layers, key=lambda layer: layer.parameters_stored + layer.outputs)
        raise ConfigError(
            f"layer {biggest.index} [{biggest.type}] needs {(parameters + 4 * largest.outputs) / 2**30:.0f} GiB, "
            f"this machine has {physical / 2**30:.0f} GiB",
            file=structure.cfg.path,
            line=biggest.section.line,
            remedy="check filters=, size=, width= and height=",
        )
