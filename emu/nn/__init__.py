"""Layers, losses, optimizers, data and models: explicit forward and backward, and a cost for each kernel.

kernel, parameter, layer        how layers compute; what they train; what they are
linear, conv, attention, …      one kind of layer a file
compose, split, split_loss      layers made of layers; a rank's part of a layer, and of the loss
loss, optim, model              what turns layers into training
models, transformers, data      an MLP, a CNN and a GPT for data that every machine has
architectures, catalogue, own   public shapes, and a user's own file
describe                        what each layer of a model costs
"""

from .activation import GELU, ReLU, SwiGLU
from .attention import Attention
from .batchnorm import BatchNorm2d
from .compose import Recompute, Residual, Sequential
from .conv import Conv2d
from .embedding import Embedding
from .layer import Layer
from .linear import Linear
from .loss import SoftmaxCrossEntropy
from .model import Hooks, Model
from .models import cnn, gpt, mlp
from .norm import LayerNorm
from .optim import SGD, Adam, Optimizer
from .parameter import Parameter
from .pool import AvgPool2d, Flatten, MaxPool2d
from .rmsnorm import RMSNorm
from .rotary import Rotary

__all__ = [
    "GELU", "SGD", "Adam", "Attention", "AvgPool2d", "BatchNorm2d", "Conv2d", "Embedding", "Flatten", "Hooks",
    "Layer", "LayerNorm", "Linear", "MaxPool2d", "Model", "Optimizer", "Parameter", "RMSNorm", "ReLU", "Recompute",
    "Residual", "Rotary", "Sequential", "SoftmaxCrossEntropy", "SwiGLU", "cnn", "gpt", "mlp",
]  # fmt: skip
