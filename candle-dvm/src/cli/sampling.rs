//! How tokens are drawn, as arguments of several commands.

use candle_engine::backend::CompletionRequest;

#[derive(Debug, clap::Args)]
pub(super) struct Sampling {
    /// Sampling temperature; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = CompletionRequest::default().temperature)]
    temperature: f64,
    /// Sample from the K most likely tokens; 0 for all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most likely tokens whose total probability is P
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Sample from tokens with at least this fraction (0 to 1) of the most likely token's probability
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Penalty on the last 64 tokens; above 1, they are less likely to repeat
    #[arg(long, value_name = "R", default_value_t = CompletionRequest::default().repeat_penalty)]
    repeat_penalty: f32,
    /// Random seed; the same seed gives the same text
    #[arg(long, value_name = "S", default_value_t = CompletionRequest::default().seed)]
    seed: u64,
    /// Stop before this text, without printing it; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
}

impl Sampling {
    /// A request that draws so.
    pub(super) fn request(self, prompt: String, max_tokens: usize) -> CompletionRequest {
        CompletionRequest {
            prompt,
            max_tokens,
            temperature: self.temperature,
            // As in llama.cpp and ollama.
            top_k: self.top_k.filter(|k| *k > 0),
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: self.seed,
            stop: self.stop,
            ..Default::default()
        }
    }
}
