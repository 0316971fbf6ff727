//! Asks the host's language models, as a component written for Spin does. Text goes to standard output, token counts to standard error.

use std::process::ExitCode;

use bindings::fermyon::spin::llm::{generate_embeddings, infer, Error, InferencingParams};
use clap::{Parser, Subcommand};

mod bindings {
    wit_bindgen::generate!({
        world: "language",
        path: "../../wit/spin-2.0",
    });
}

/// Asks the host's language models.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Goes on from a prompt.
    Infer(Infer),
    /// Prints a vector for each text, as JSON.
    Embed {
        /// The host's name for the model.
        model: String,
        texts: Vec<String>,
    },
}

#[derive(clap::Args)]
struct Infer {
    /// The host's name for the model.
    model: String,
    prompt: String,
    #[command(subcommand)]
    params: Option<Params>,
}

/// Without them the host has its own.
#[derive(Subcommand)]
enum Params {
    /// All parameters, in the interface's order.
    With {
        max_tokens: u32,
        repeat_penalty: f32,
        repeat_last_n: u32,
        temperature: f32,
        top_k: u32,
        top_p: f32,
    },
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Infer(args) => answer(args),
        Command::Embed { model, texts } => vectors(&model, &texts),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::ModelNotSupported) => failed("model-not-supported", ""),
        Err(Error::RuntimeError(text)) => failed("runtime-error", &text),
        Err(Error::InvalidInput(text)) => failed("invalid-input", &text),
    }
}

fn failed(name: &str, text: &str) -> ExitCode {
    eprintln!("{name}: {text}");
    ExitCode::FAILURE
}

fn answer(args: Infer) -> Result<(), Error> {
    let params = args.params.map(|params| match params {
        Params::With {
            max_tokens,
            repeat_penalty,
            repeat_last_n,
            temperature,
            top_k,
            top_p,
        } => InferencingParams {
            max_tokens,
            repeat_penalty,
            repeat_penalty_last_n_token_count: repeat_last_n,
            temperature,
            top_k,
            top_p,
        },
    });
    let result = infer(&args.model, &args.prompt, params)?;
    println!("{}", result.text);
    let usage = result.usage;
    eprintln!(
        "tokens: {} of the prompt, {} made",
        usage.prompt_token_count, usage.generated_token_count
    );
    Ok(())
}

fn vectors(model: &str, texts: &[String]) -> Result<(), Error> {
    let result = generate_embeddings(model, texts)?;
    println!("{}", serde_json::json!(result.embeddings));
    eprintln!("tokens: {}", result.usage.prompt_token_count);
    Ok(())
}
