"""A network of DeepXDE that solves an equation of Poisson, of which it knows only the equation."""

import deepxde
import numpy
import torch


def solution(x):
    return numpy.sin(numpy.pi * x)


def residual(x, y):
    return deepxde.grad.hessian(y, x) + numpy.pi**2 * torch.sin(numpy.pi * x)


deepxde.config.set_random_seed(0)
line = deepxde.geometry.Interval(-1, 1)
ends = deepxde.icbc.DirichletBC(line, solution, lambda _, on_boundary: on_boundary)
points = line.random_points(64)
data = deepxde.data.PDE(line, residual, ends, num_boundary=2, anchors=points)

network = deepxde.nn.FNN([1, 32, 32, 1], "tanh", "Glorot uniform")
adam = torch.optim.Adam(network.parameters(), lr=0.002)
model = deepxde.Model(data, network)
model.compile(adam, verbose=0)
model.train(iterations=1000, display_every=500, verbose=0)

places = line.uniform_points(200)
error = deepxde.metrics.l2_relative_error(solution(places), model.predict(places))
print(f"held-out relative error: {error:.4f}")
