//! Payment by Cashu tokens (NUT-00 to NUT-03, NUT-09, NUT-11), which come with requests.
//!
//! The service swaps a token at its mint for coins that only it knows, in one request: the price, and the change, which is returned with
//! the answer. The request is on disk before it is sent, so that the coins can be recovered after a crash. Coins of a job without an answer
//! are held: a result makes the price the operator's, an error returns everything.
//!
//! - `token`: tokens as text. `curve`: blind signatures. `mint`: requests to a mint. [`purse`]: coins on disk. [`send`]: how the operator
//!   withdraws them.

mod curve;
mod mint;
pub mod purse;
pub mod send;
mod token;

use super::{Cash, Money};
use crate::jobs::JobId;
use crate::platform::{sleep, Boxed};
use crate::{Error, Result};
use mint::{Failure, Keyset};
use nostr::prelude::Keys;
use purse::{Coins, Plan, Purse, Shelf};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use token::Proof;
pub use token::Token;
use url::Url;

/// The unit of accepted coins.
const UNIT: &str = "sat";
/// Between two requests to a mint that may have done the first, at first and at most.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Takes tokens of some mints.
pub struct Till {
    mints: Vec<Url>,
    price: u64,
    keys: Arc<Keys>,
    purse: Purse,
}

/// A mint's address in the one form in which they are compared.
fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text.trim().trim_end_matches('/')).ok()?;
    matches!(url.scheme(), "http" | "https").then_some(url)
}

impl Till {
    /// Takes tokens of `mints`, for jobs of this price in thousandths of a satoshi, which is rounded up to whole ones. `keys` open tokens that
    /// are locked to them.
    ///
    /// # Errors
    /// An address of a mint that is none, and a folder that cannot be made.
    pub fn open(folder: &Path, mints: &[String], price_msat: u64, keys: Arc<Keys>) -> Result<Self> {
        let mint = |text: &String| {
            address(text).ok_or_else(|| Error::Setting {
                name: "cashu-mints",
                value: text.clone(),
                expected: "addresses of mints, as https://mint.example.com".to_string(),
            })
        };
        Ok(Self {
            mints: mints.iter().map(mint).collect::<Result<_>>()?,
            price: price_msat.div_ceil(1000),
            keys,
            purse: Purse::open(folder).map_err(Error::service)?,
        })
    }

    /// A token and its mint, if it may be worth the price.
    fn token(&self, text: &str) -> std::result::Result<(Url, Token), String> {
        let token = Token::read(text)?;
        let listed = address(&token.mint).filter(|mint| self.mints.contains(mint));
        let Some(mint) = listed else {
            return Err(format!(
                "the token is of another mint than {}",
                self.mints().join(", ")
            ));
        };
        if token.unit != UNIT {
            return Err(format!("the token's unit is not {UNIT}"));
        }
        if token.amount().is_none_or(|amount| amount < self.price) {
            return Err(format!(
                "the token is worth less than the price, {} sat",
                self.price
            ));
        }
        for proof in &token.proofs {
            self.witness(proof)?;
        }
        Ok((mint, token))
    }

    /// The witness of a coin: a signature, if it is locked to our key.
    fn witness(&self, proof: &Proof) -> std::result::Result<Option<String>, String> {
        let secret: Option<(String, serde_json::Value)> = serde_json::from_str(&proof.secret).ok();
        let Some((kind, lock)) = secret else {
            return Ok(proof.witness.clone());
        };
        let tags = lock["tags"].as_array().map_or(&[][..], Vec::as_slice);
        let is_simple = |tag: &serde_json::Value| match tag[0].as_str() {
            Some("locktime" | "refund") => true,
            Some("sigflag") => tag[1] == "SIG_INPUTS",
            _ => false,
        };
        let simple = tags.iter().all(is_simple);
        let ours = format!("02{}", self.keys.public_key().to_hex());
        if kind != "P2PK" || lock["data"] != ours.as_str() || !simple {
            return Err("the token is locked, and not to this service's key alone".to_string());
        }
        let signature = self.keys.sign_schnorr(curve::hash(&proof.secret));
        Ok(Some(
            json!({"signatures": [signature.to_string()]}).to_string(),
        ))
    }

    /// The swap to request of the token's mint.
    async fn plan(&self, text: &str) -> std::result::Result<Plan, String> {
        let (mint, token) = self.token(text)?;
        let keyset = Keyset::of(&mint, UNIT).await;
        let keyset = keyset.map_err(|err| {
            let mint = mint.host_str().unwrap_or_default();
            tracing::warn!(mint, error = err, "the mint cannot be used");
            format!("cannot use the mint now, and the token was not spent: {err}")
        })?;
        let mut inputs = token.proofs;
        for proof in &mut inputs {
            let whole = keyset.whole_id(&proof.id);
            proof.id = whole
                .ok_or("the mint does not know the token's keys")?
                .clone();
            proof.witness = self.witness(proof)?;
        }
        let change = |worth: u64| {
            worth
                .checked_sub(keyset.fee(&inputs))?
                .checked_sub(self.price)
        };
        let Some(change) = token::amount(&inputs).and_then(change) else {
            return Err(format!(
                "the token is worth less than the price, {} sat, and the mint's fee, {} sat",
                self.price,
                keyset.fee(&inputs)
            ));
        };
        let mut outputs = keyset.outputs(self.price)?;
        let price = outputs.len();
        outputs.extend(keyset.outputs(change)?);
        Ok(Plan {
            mint: mint.to_string(),
            inputs,
            outputs,
            price,
        })
    }
}

/// Carries a plan out: the coins are had, or it is certain that nothing was spent. `is_begun` says that the mint may have been asked before.
///
/// # Errors
/// The mint refuses, in a line.
async fn carry_out(plan: &Plan, mut is_begun: bool) -> std::result::Result<Coins, String> {
    let mint = Url::parse(&plan.mint).map_err(|err| err.to_string())?;
    let mut patience = PATIENCE.0;
    let mut proofs = loop {
        let unknown = match mint::swap(&mint, &plan.inputs, &plan.outputs).await {
            Ok(coins) => break coins,
            Err(Failure::Refused(reason)) if !is_begun => return Err(refused(&reason)),
            // Maybe because it was done before.
            Err(Failure::Refused(reason)) => match mint::restore(&mint, &plan.outputs).await {
                Ok(Some(coins)) => break coins,
                Ok(None) => return Err(refused(&reason)),
                Err(Failure::Refused(unknown) | Failure::Unknown(unknown)) => unknown,
            },
            Err(Failure::Unknown(unknown)) => unknown,
        };
        is_begun = true;
        let host = mint.host_str();
        tracing::warn!(
            mint = host,
            error = unknown,
            "a swap's outcome is unknown; asking again"
        );
        sleep(patience).await;
        patience = (patience * 2).min(PATIENCE.1);
    };
    let change = proofs.split_off(plan.price.min(proofs.len()));
    Ok(Coins {
        mint: plan.mint.trim_end_matches('/').to_string(),
        unit: UNIT.to_string(),
        price: proofs,
        change,
        spent: Vec::new(),
    })
}

fn refused(reason: &str) -> String {
    format!("the mint refuses the token: {reason}")
}

impl Cash for Till {
    fn mints(&self) -> Vec<String> {
        let mints = self.mints.iter();
        mints
            .map(|mint| mint.as_str().trim_end_matches('/').to_string())
            .collect()
    }

    fn check(&self, token: &str) -> std::result::Result<(), String> {
        self.token(token).map(|_| ())
    }

    fn has(&self, job: JobId) -> bool {
        let name = job.to_string();
        self.purse.has(Shelf::Planned, &name) || self.purse.has(Shelf::Held, &name)
    }

    fn redeem<'a>(
        &'a self,
        job: JobId,
        token: &'a str,
    ) -> Boxed<'a, std::result::Result<(), String>> {
        let kept = move |err: String| {
            tracing::error!(job = %job, error = err, "cannot keep a token's coins");
            "cannot take the token now, and it was not spent; try again later".to_string()
        };
        Box::pin(async move {
            let name = job.to_string();
            if self.purse.has(Shelf::Held, &name) {
                return self.purse.remove(Shelf::Planned, &name).map_err(kept);
            }
            let planned = self.purse.get(Shelf::Planned, &name).map_err(kept)?;
            let is_begun = planned.is_some();
            let plan = match planned {
                Some(plan) => plan,
                None => {
                    let plan = self.plan(token).await?;
                    self.purse.put(Shelf::Planned, &name, &plan).map_err(kept)?;
                    plan
                }
            };
            match carry_out(&plan, is_begun).await {
                Ok(coins) => {
                    // The plan stays until they are there: with it they can be had again.
                    let mut said = false;
                    while let Err(err) = self.purse.put(Shelf::Held, &name, &coins) {
                        if !std::mem::replace(&mut said, true) {
                            tracing::error!(job = %job, error = err, "cannot keep coins; trying again");
                        }
                        sleep(PATIENCE.1).await;
                    }
                    let _ = self.purse.remove(Shelf::Planned, &name);
                    Ok(())
                }
                Err(refused) => {
                    let _ = self.purse.remove(Shelf::Planned, &name);
                    Err(refused)
                }
            }
        })
    }

    fn held(&self, job: JobId) -> std::result::Result<Option<Money>, String> {
        let coins: Option<Coins> = self.purse.get(Shelf::Held, &job.to_string())?;
        let money = |coins: Coins| {
            Ok(Money {
                change: coins.token(&coins.change)?,
                all: coins.token(coins.price.iter().chain(&coins.change))?,
            })
        };
        coins.map(money).transpose()
    }

    fn settle(&self, job: JobId, is_earned: bool) -> std::result::Result<(), String> {
        let name = job.to_string();
        let Some(mut coins): Option<Coins> = self.purse.get(Shelf::Held, &name)? else {
            return Ok(());
        };
        if is_earned {
            coins.change.clear();
            self.purse.put(Shelf::Earned, &name, &coins)?;
        } else {
            self.purse.put(Shelf::Given, &name, &coins)?
        }
        self.purse.remove(Shelf::Held, &name)
    }

    fn unsettled(&self) -> std::result::Result<Vec<JobId>, String> {
        let names = self.purse.names(Shelf::Held)?.into_iter();
        let id = |name: String| Some(JobId(curve::from_hex(&name)?.try_into().ok()?));
        Ok(names.filter_map(id).collect())
    }
}
