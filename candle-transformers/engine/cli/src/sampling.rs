//! The settings for drawing tokens, as arguments of several commands.

use candle_engine::backend::CompletionRequest;
use candle_engine::SamplingDefaults;
use std::hash::{BuildHasher, Hasher};

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Sampling {
    /// Sampling temperature; 0 always takes the most likely token [default: 0; in `chat` the model's recommendation, or else 0.7 with
    /// --top-p 0.95]
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Sample from the K most likely tokens; 0 for all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most likely tokens whose total probability is P
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Sample from tokens with at least this fraction (0 to 1) of the most likely token's probability
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Penalty on the last 64 tokens; above 1, they are less likely to repeat [default: 1; in `chat` the model's recommendation]
    #[arg(long, value_name = "R")]
    repeat_penalty: Option<f32>,
    /// Random seed; the same seed gives the same text [default: 299792458; in `chat` another one each time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Stop before this text, without printing it; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
}

impl Sampling {
    /// A request that draws so, by default the most likely tokens.
    pub(super) fn request(self, prompt: String, max_tokens: usize) -> CompletionRequest {
        let default = CompletionRequest::default();
        CompletionRequest {
            prompt,
            max_tokens,
            temperature: self.temperature.unwrap_or(default.temperature),
            // As in llama.cpp and ollama.
            top_k: self.top_k.filter(|k| *k > 0),
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            seed: self.seed.unwrap_or(default.seed),
            stop: self.stop,
            ..default
        }
    }

    /// As [`request`](Self::request), by default as the model's authors recommend, or else with some variety.
    pub(super) fn chat_request(
        self,
        model: &SamplingDefaults,
        max_tokens: usize,
    ) -> CompletionRequest {
        let default = model.for_chat().request();
        Self {
            temperature: self.temperature.or(Some(default.temperature)),
            top_k: self.top_k.or(default.top_k),
            top_p: self.top_p.or(default.top_p),
            min_p: self.min_p.or(default.min_p),
            repeat_penalty: self.repeat_penalty.or(Some(default.repeat_penalty)),
            seed: self.seed.or_else(|| Some(random_seed())),
            stop: self.stop,
        }
        .request(String::new(), max_tokens)
    }
}

/// A seed of the keys that the standard library draws for hash tables.
fn random_seed() -> u64 {
    // Small enough to type.
    std::hash::RandomState::new().build_hasher().finish() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        sampling: Sampling,
    }

    fn ask(args: &[&str], model: &SamplingDefaults) -> CompletionRequest {
        let args = [&["x"], args].concat();
        Args::parse_from(args).sampling.chat_request(model, 9)
    }

    #[test]
    fn defaults_of_chat() {
        let settings = |request: &CompletionRequest| {
            let penalty = request.repeat_penalty;
            (request.temperature, request.top_k, request.top_p, penalty)
        };
        let none = SamplingDefaults::default();
        let request = ask(&[], &none);
        assert_eq!(settings(&request), (0.7, None, Some(0.95), 1.));
        assert_ne!(request.seed, ask(&[], &none).seed);
        let request = ask(&["--temperature", "0", "--seed", "3"], &none);
        assert_eq!((request.temperature, request.seed), (0., 3));
        let model = SamplingDefaults {
            draws: Some(true),
            top_k: Some(20),
            repeat_penalty: Some(1.1),
            ..none
        };
        assert_eq!(settings(&ask(&[], &model)), (1., Some(20), None, 1.1));
        let args = ["--top-p", "0.5", "--top-k", "0", "--repeat-penalty", "1"];
        assert_eq!(settings(&ask(&args, &model)), (1., None, Some(0.5), 1.));
        let greedy = SamplingDefaults {
            draws: Some(false),
            temperature: Some(0.6),
            ..none
        };
        assert_eq!(ask(&[], &greedy).temperature, 0.);
    }
}
