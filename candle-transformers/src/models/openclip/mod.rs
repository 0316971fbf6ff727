//! OpenCLIP, an open training of CLIP: [arXiv 2212.07143](https://arxiv.org/abs/2212.07143). Here is its encoder of texts.

pub mod text_model;
