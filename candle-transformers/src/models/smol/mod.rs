//! SmolLM3: [the model card](https://huggingface.co/HuggingFaceTB/SmolLM3-3B). Llama of which every fourth layer rotates nothing. SmolLM and
//! SmolLM2 are Llamas: [`super::llama`].

pub mod quantized_smollm3;
pub mod smollm3;
