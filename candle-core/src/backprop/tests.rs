//! What cannot be seen from outside: gradients that keep their graph.
