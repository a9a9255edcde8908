"""One thread for the whole suite: its models are tiny, and two threads beside a busy neighbour are far slower than one."""

import torch

torch.set_num_threads(1)
