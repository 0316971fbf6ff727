//! `candle-dvm models`: what is in the cache of the Hugging Face Hub.

mod fit;

use crate::{print, print_json};
use crate::{Error, Result};
use candle_engine::model::{Hub, HubModel, ModelSource, FORM};
use candle_engine::progress::note;
use std::io::{IsTerminal, Write};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the models in the cache, with their sizes
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Download a model into the cache, and print where it is
    Pull {
        /// A Hub model, owner/name[@revision][:file.gguf], or with a format such as :Q4_K_M
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Tell how much memory a model takes on a GPU, and how many of its layers fit, without loading it
    Fit(fit::Args),
    /// Remove a model from the cache, a revision of it, or a GGUF file
    Rm {
        /// owner/name, owner/name@revision or owner/name:file.gguf
        #[arg(value_name = "NAME")]
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

pub(super) fn run(args: Args) -> Result<()> {
    let hub = Hub::from_env()?;
    match args.action {
        Action::List { json } => list(&hub, json),
        Action::Pull { name } => {
            let (ModelSource::Folder(path) | ModelSource::Gguf(path)) =
                hub.fetch(&named(&name)?)?
            else {
                return Err(Error::Service(format!(
                    "{name}: neither a folder nor a file"
                )));
            };
            print(&format!("{}\n", path.display()))
        }
        Action::Fit(args) => fit::run(args),
        Action::Rm { name, yes } => remove(&hub, &named(&name)?, yes),
    }
}

fn named(name: &str) -> Result<HubModel> {
    let known = HubModel::parse(name).ok_or_else(|| candle_engine::Error::Hub {
        model: name.to_string(),
        problem: format!("not the name of a model on the Hugging Face Hub; expected {FORM}"),
    });
    Ok(known?)
}

fn list(hub: &Hub, json: bool) -> Result<()> {
    let repos = hub.repos()?;
    if json {
        return print_json(&repos);
    }
    if repos.is_empty() {
        note(&format!(
            "no models in {}; `models pull NAME` downloads one",
            hub.cache.display()
        ));
        return Ok(());
    }
    let mut rows = Vec::new();
    for repo in &repos {
        let models = repo.models.iter();
        rows.extend(models.map(|model| (model.name.clone(), model.bytes, "")));
        if repo.models.is_empty() {
            rows.push((repo.repo.clone(), repo.bytes, "  incomplete"));
        } else if repo.incomplete_bytes > 0 {
            rows.push((repo.repo.clone(), repo.incomplete_bytes, "  incomplete"));
        }
    }
    let width = rows.iter().map(|(name, ..)| name.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for (name, bytes, remark) in rows {
        text += &format!("{name:width$}  {:>9}{remark}\n", size(bytes));
    }
    print(&text)?;
    let total: u64 = repos.iter().map(|repo| repo.bytes).sum();
    note(&format!("{} in {}", size(total), hub.cache.display()));
    Ok(())
}

fn remove(hub: &Hub, model: &HubModel, yes: bool) -> Result<()> {
    let removal = hub.removal(model)?;
    let freed = size(removal.bytes());
    if !yes && !asks(&format!("Remove {model} ({freed})?"))? {
        note("nothing removed");
        return Ok(());
    }
    removal.run()?;
    note(&format!("{model} removed, {freed} freed"));
    Ok(())
}

/// Whether a person says yes.
fn asks(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::Service(format!(
            "{question} There is no terminal to answer on; pass --yes to remove it"
        )));
    }
    let mut stderr = std::io::stderr();
    // A closed standard error is a no.
    let _ = write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(Error::Stdin)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.1} kB", bytes / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes() {
        assert_eq!(size(950), "0.9 kB");
        assert_eq!(size(1_540_000), "1.5 MB");
        assert_eq!(size(70_600_000_000), "70.6 GB");
    }
}
