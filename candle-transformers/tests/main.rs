//! Tests of the models, their blocks and the sampling, each on every device that the build has.

mod cases;
