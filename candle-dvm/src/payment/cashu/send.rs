//! Withdraws the operator's earnings as tokens.

use super::mint::{self, Failure, Keyset};
use super::purse::{Coins, Plan, Purse, Shelf};
use super::token::{amount, Proof};
use super::{carry_out, UNIT};
use rand::RngCore;
use std::collections::{BTreeMap, BTreeSet};
use url::Url;

/// The beginning of the names of sent coins' files.
const SENT: &str = "send-";

/// The coins that were earned and not sent, by mint.
///
/// # Errors
/// A file that cannot be read.
pub fn earned(purse: &Purse) -> Result<BTreeMap<String, Vec<Proof>>, String> {
    let sent = purse.names(Shelf::Given)?.into_iter();
    let mut spent = BTreeSet::new();
    for name in sent.filter(|name| name.starts_with(SENT)) {
        let coins: Option<Coins> = purse.get(Shelf::Given, &name)?;
        spent.extend(coins.into_iter().flat_map(|coins| coins.spent));
    }
    let mut earned: BTreeMap<String, Vec<Proof>> = BTreeMap::new();
    for name in purse.names(Shelf::Earned)? {
        let Some(coins): Option<Coins> = purse.get(Shelf::Earned, &name)? else {
            continue;
        };
        let left = coins.price.into_iter();
        let left: Vec<Proof> = left
            .filter(|proof| !spent.contains(&proof.secret))
            .collect();
        if left.is_empty() {
            // All of it was sent, and the file was to go.
            purse.remove(Shelf::Earned, &name)?
        } else {
            earned.entry(coins.mint).or_default().extend(left)
        }
    }
    Ok(earned)
}

/// The sums of [`earned`].
///
/// # Errors
/// As for that.
pub fn balance(purse: &Purse) -> Result<BTreeMap<String, u64>, String> {
    let earned = earned(purse)?.into_iter();
    let sum = |(mint, proofs): (String, Vec<Proof>)| (mint, amount(&proofs).unwrap_or(u64::MAX));
    Ok(earned.map(sum).collect())
}

fn name() -> String {
    format!("{SENT}{:016x}", rand::rng().next_u64())
}

/// Notes that coins are sent, and gives them as a token.
fn give(
    purse: &Purse,
    name: &str,
    mint: String,
    price: Vec<Proof>,
    spent: Vec<String>,
) -> Result<String, String> {
    let coins = Coins {
        mint,
        unit: UNIT.to_string(),
        price,
        change: Vec::new(),
        spent,
    };
    let token = coins
        .token(&coins.price)?
        .ok_or("there is nothing to send")?;
    purse.put(Shelf::Given, name, &coins)?;
    // What is gone with it is cleared away.
    earned(purse)?;
    Ok(token)
}

fn secrets(proofs: &[Proof]) -> Vec<String> {
    proofs.iter().map(|proof| proof.secret.clone()).collect()
}

/// Everything, as a token of each mint.
///
/// # Errors
/// A file that cannot be read or written.
pub fn all(purse: &Purse) -> Result<Vec<String>, String> {
    let earned = earned(purse)?.into_iter();
    let token = |(mint, proofs): (String, Vec<Proof>)| {
        let spent = secrets(&proofs);
        give(purse, &name(), mint, proofs, spent)
    };
    earned.map(token).collect()
}

/// A token worth `wanted`, of a mint with enough coins; the mint changes coins if none fit.
///
/// # Errors
/// There is not enough, or the mint does not change coins.
pub async fn some(purse: &Purse, wanted: u64) -> Result<String, String> {
    let mut most = 0;
    for (mint, mut proofs) in earned(purse)? {
        let worth = amount(&proofs).unwrap_or(u64::MAX);
        most = most.max(worth);
        if worth < wanted || wanted == 0 {
            continue;
        }
        proofs.sort_by_key(|proof| std::cmp::Reverse(proof.amount));
        let mut left = wanted;
        let fits = |proof: &&Proof| {
            let fits = proof.amount <= left;
            left -= if fits { proof.amount } else { 0 };
            fits
        };
        let exact: Vec<Proof> = proofs.iter().filter(fits).cloned().collect();
        if left == 0 {
            let spent = secrets(&exact);
            return give(purse, &name(), mint, exact, spent);
        }
        return changed(purse, &mint, proofs, wanted).await;
    }
    Err(format!(
        "{wanted} sat: expected 1 to {most}, which one mint's coins are worth"
    ))
}

/// Has the mint change coins, the largest first.
async fn changed(
    purse: &Purse,
    mint: &str,
    proofs: Vec<Proof>,
    wanted: u64,
) -> Result<String, String> {
    let url = Url::parse(mint).map_err(|err| err.to_string())?;
    let keyset = Keyset::of(&url, UNIT).await?;
    let change = |inputs: &[Proof]| {
        let worth = amount(inputs)?.checked_sub(keyset.fee(inputs))?;
        worth.checked_sub(wanted)
    };
    let enough = (1..=proofs.len()).find_map(|count| Some((count, change(&proofs[..count])?)));
    let (count, change) = enough.ok_or("not enough for the mint's fee; send all of it")?;
    let mut outputs = keyset.outputs(wanted)?;
    let price = outputs.len();
    outputs.extend(keyset.outputs(change)?);
    let plan = Plan {
        mint: mint.to_string(),
        inputs: proofs[..count].to_vec(),
        outputs,
        price,
    };
    let name = name();
    purse.put(Shelf::Planned, &name, &plan)?;
    let coins = carry_out(&plan, false).await;
    if coins.is_err() {
        purse.remove(Shelf::Planned, &name)?;
    }
    let coins = coins?;
    keep(purse, &name, &coins.mint, coins.change)?;
    let token = give(purse, &name, coins.mint, coins.price, secrets(&plan.inputs))?;
    purse.remove(Shelf::Planned, &name)?;
    Ok(token)
}

fn keep(purse: &Purse, name: &str, mint: &str, price: Vec<Proof>) -> Result<(), String> {
    let coins = Coins {
        mint: mint.to_string(),
        unit: UNIT.to_string(),
        price,
        ..Coins::default()
    };
    purse.put(Shelf::Earned, name, &coins)
}

/// Takes back what an earlier call was about to send when it was ended: its token was never shown.
///
/// # Errors
/// The mint does not say what it has done.
pub async fn resume(purse: &Purse) -> Result<(), String> {
    for name in purse.names(Shelf::Planned)? {
        if !name.starts_with(SENT) {
            continue;
        }
        let Some(plan): Option<Plan> = purse.get(Shelf::Planned, &name)? else {
            continue;
        };
        let url = Url::parse(&plan.mint).map_err(|err| err.to_string())?;
        match mint::restore(&url, &plan.outputs).await {
            Ok(Some(coins)) => {
                keep(purse, &name, &plan.mint, coins)?;
                let spent = Coins {
                    mint: plan.mint,
                    spent: secrets(&plan.inputs),
                    ..Coins::default()
                };
                purse.put(Shelf::Given, &name, &spent)?;
            }
            // Then the coins are what they were.
            Ok(None) => {}
            Err(Failure::Refused(problem) | Failure::Unknown(problem)) => return Err(problem),
        }
        purse.remove(Shelf::Planned, &name)?;
    }
    Ok(())
}
