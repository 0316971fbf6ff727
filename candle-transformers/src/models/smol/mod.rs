//! SmolLM3: [the model card](https://huggingface.co/HuggingFaceTB/SmolLM3-3B). Llama without rotation in every fourth layer. SmolLM and
//! SmolLM2 are Llamas: [`super::llama`].

pub mod quantized_smollm3;
pub mod smollm3;
