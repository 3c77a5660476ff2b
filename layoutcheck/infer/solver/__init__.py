"""From a graph to a solved typing: groups, inputs, the forward pass, and what the program shows of its inputs."""
