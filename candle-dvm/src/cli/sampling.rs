//! How tokens are drawn, as arguments of several commands.

use crate::backend::CompletionRequest;

#[derive(Debug, clap::Args)]
pub(super) struct Sampling {
    /// 0 takes the likeliest token each time; higher draws more freely
    #[arg(long, value_name = "T", default_value_t = CompletionRequest::default().temperature)]
    temperature: f64,
    /// Draw from the K likeliest tokens only
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw from the likeliest tokens that together have probability P
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Draw from tokens that have at least this share of the likeliest one's probability, from 0 to 1
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Above 1, the last 64 tokens become less likely to come again
    #[arg(long, value_name = "R", default_value_t = CompletionRequest::default().repeat_penalty)]
    repeat_penalty: f32,
    /// Seed of the draws: the same gives the same text
    #[arg(long, value_name = "S", default_value_t = CompletionRequest::default().seed)]
    seed: u64,
    /// End before this text, which is not printed; may come several times
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
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: self.seed,
            stop: self.stop,
            ..Default::default()
        }
    }
}
