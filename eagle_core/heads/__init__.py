"""Draft heads as ``nn.Module``s: tensors in, tensors out. They know no tree, no cache policy and no loop."""
