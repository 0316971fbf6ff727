//! Requests to a mint, over HTTP: its keys (NUT-01, NUT-02), to swap coins (NUT-03), and what it signed before (NUT-09).

use super::curve::{blind, from_hex, hex, unblind};
use super::token::Proof;
use crate::relay::http;
use rand::RngCore;
use secp256k1::{PublicKey, SecretKey};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::time::Duration;
use url::Url;

const TIMEOUT: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const MOST: usize = 4 << 20;
/// The codes of mints for coins that another request is about to spend: that one may be ours.
const PENDING: [u64; 2] = [11002, 11004];

/// The reason why a mint did not execute a request.
pub enum Failure {
    /// It says no, and why.
    Refused(String),
    /// It did not answer, or with something else: it may have done it.
    Unknown(String),
}

/// A coin to come: the message for the mint to sign, and the secrets that make a coin of the signature.
#[derive(Clone, Serialize, Deserialize)]
pub struct Output {
    amount: u64,
    id: String,
    secret: String,
    /// The blinding factor.
    r: String,
    /// The mint's key for the amount.
    key: String,
}

/// The keys of a mint that are in use, and what each coin of any of its keysets costs to spend.
pub struct Keyset {
    id: String,
    keys: BTreeMap<u64, String>,
    /// Thousandths of a coin's unit by the keyset's id.
    fees: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct About {
    id: String,
    unit: String,
    active: bool,
    #[serde(default)]
    input_fee_ppk: u64,
}

fn parse<T: serde::de::DeserializeOwned>(value: Value, what: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|_| format!("the mint's {what} cannot be read"))
}

fn at(mint: &Url, path: &str) -> Result<Url, String> {
    let base = mint.as_str().trim_end_matches('/');
    Url::parse(&format!("{base}/v1/{path}")).map_err(|err| err.to_string())
}

async fn get(mint: &Url, path: &str) -> Result<Value, String> {
    let url = at(mint, path)?;
    let reach = crate::relay::Reach::Anywhere;
    let bytes = http::get(&url, "application/json", reach, MOST, TIMEOUT).await?;
    serde_json::from_slice(&bytes).map_err(|_| "the mint's answer is not JSON".to_string())
}

async fn post(mint: &Url, path: &str, body: &Value) -> Result<Value, Failure> {
    let url = at(mint, path).map_err(Failure::Refused)?;
    let answer = http::post(&url, body.to_string(), MOST, TIMEOUT).await;
    let (status, bytes) = answer.map_err(Failure::Unknown)?;
    let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    match status {
        200 => Ok(value),
        400..500 if !PENDING.iter().any(|code| value["code"] == *code) => {
            let detail = value["detail"].as_str().unwrap_or("no reason given");
            let detail: String = detail
                .chars()
                .filter(|c| !c.is_control())
                .take(120)
                .collect();
            Err(Failure::Refused(detail))
        }
        status => Err(Failure::Unknown(format!("HTTP status {status}"))),
    }
}

impl Keyset {
    /// Asks for the keys of a unit that are in use.
    ///
    /// # Errors
    /// In one line: no connection, or an answer that is none of a mint.
    pub async fn of(mint: &Url, unit: &str) -> Result<Self, String> {
        let mut found = get(mint, "keysets").await?;
        let all: Vec<About> = parse(found["keysets"].take(), "list of keysets")?;
        let fees = all
            .iter()
            .map(|about| (about.id.clone(), about.input_fee_ppk));
        let fees = fees.collect();
        let cheapest = all
            .into_iter()
            .filter(|about| about.active && about.unit == unit);
        let Some(about) = cheapest.min_by_key(|about| about.input_fee_ppk) else {
            return Err(format!("the mint has no keys for {unit}"));
        };
        // An id is the mint's word: nothing else than digits goes into an address.
        if from_hex(&about.id).is_none() {
            return Err("the mint's keyset has an id that is not hexadecimal".to_string());
        }
        let mut found = get(mint, &format!("keys/{}", about.id)).await?;
        let keys: BTreeMap<String, String> = parse(found["keysets"][0]["keys"].take(), "keys")?;
        let keys = keys.into_iter();
        let keys = keys.filter_map(|(amount, key)| Some((amount.parse().ok()?, key)));
        Ok(Self {
            id: about.id,
            keys: keys.collect(),
            fees,
        })
    }

    /// The whole id of coins whose token has the beginning alone.
    pub fn whole_id(&self, short: &str) -> Option<&String> {
        let mut all = self.fees.keys();
        all.find(|id| id.starts_with(short))
    }

    /// The fee for spending coins, in their unit.
    pub fn fee(&self, proofs: &[Proof]) -> u64 {
        let fee = |proof: &Proof| self.fees.get(&proof.id).copied().unwrap_or(0);
        let all = proofs.iter().map(fee).fold(0u64, u64::saturating_add);
        all.div_ceil(1000)
    }

    /// Coins to come of this worth together, the largest first.
    ///
    /// # Errors
    /// The mint has no key for an amount.
    pub fn outputs(&self, mut amount: u64) -> Result<Vec<Output>, String> {
        let mut outputs = Vec::new();
        for (worth, key) in self.keys.iter().rev().filter(|(worth, _)| **worth > 0) {
            while amount >= *worth {
                amount -= worth;
                let mut random = [0; 32];
                rand::rng().fill_bytes(&mut random);
                let secret = hex(&random);
                let r = loop {
                    rand::rng().fill_bytes(&mut random);
                    // All but a few numbers are keys.
                    if let Ok(r) = SecretKey::from_slice(&random) {
                        break r;
                    }
                };
                outputs.push(Output {
                    amount: *worth,
                    id: self.id.clone(),
                    secret,
                    r: hex(&r.secret_bytes()),
                    key: key.clone(),
                });
                if outputs.len() > 1000 {
                    return Err("the mint has no keys for such amounts".to_string());
                }
            }
        }
        match amount {
            0 => Ok(outputs),
            _ => Err("the mint has no keys for such amounts".to_string()),
        }
    }
}

impl Output {
    fn r(&self) -> Result<SecretKey, String> {
        let bytes = from_hex(&self.r).unwrap_or_default();
        SecretKey::from_slice(&bytes).map_err(|err| err.to_string())
    }

    fn blinded(&self) -> Result<String, String> {
        Ok(blind(&self.secret, &self.r()?)?.to_string())
    }

    /// The coin, with the mint's signature.
    fn coin(&self, signature: &str) -> Result<Proof, String> {
        let point = |text: &str| text.parse::<PublicKey>().map_err(|err| err.to_string());
        let c = unblind(&point(signature)?, &self.r()?, &point(&self.key)?)?;
        Ok(Proof {
            amount: self.amount,
            id: self.id.clone(),
            secret: self.secret.clone(),
            c: c.to_string(),
            witness: None,
        })
    }
}

fn messages(outputs: &[Output]) -> Result<Vec<Value>, String> {
    let message = |output: &Output| {
        let blinded = output.blinded()?;
        Ok(json!({"amount": output.amount, "id": output.id, "B_": blinded}))
    };
    outputs.iter().map(message).collect()
}

/// The coins that the mint gives for others.
///
/// # Errors
/// [`Failure`].
pub async fn swap(mint: &Url, inputs: &[Proof], outputs: &[Output]) -> Result<Vec<Proof>, Failure> {
    let messages = messages(outputs).map_err(Failure::Refused)?;
    let body = json!({"inputs": inputs, "outputs": messages});
    let answer = post(mint, "swap", &body).await?;
    let signatures = answer["signatures"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if signatures.len() != outputs.len() {
        return Err(Failure::Unknown(
            "the mint did not sign every coin".to_string(),
        ));
    }
    let coin = |(output, signature): (&Output, &Value)| {
        let signature = signature["C_"].as_str().unwrap_or_default();
        output.coin(signature).map_err(Failure::Unknown)
    };
    outputs.iter().zip(signatures).map(coin).collect()
}

/// The coins of outputs that the mint signed before; `None` if it did not sign all of them.
///
/// # Errors
/// [`Failure`].
pub async fn restore(mint: &Url, outputs: &[Output]) -> Result<Option<Vec<Proof>>, Failure> {
    let messages = messages(outputs).map_err(Failure::Refused)?;
    let answer = post(mint, "restore", &json!({"outputs": messages})).await?;
    let list = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let signed: BTreeMap<String, String> = list("outputs")
        .iter()
        .zip(list("signatures"))
        .filter_map(|(output, signature)| {
            let blinded = output["B_"].as_str()?.to_string();
            Some((blinded, signature["C_"].as_str()?.to_string()))
        })
        .collect();
    let mut coins = Vec::new();
    for output in outputs {
        let blinded = output.blinded().map_err(Failure::Refused)?;
        match signed.get(&blinded) {
            Some(signature) => coins.push(output.coin(signature).map_err(Failure::Unknown)?),
            None => return Ok(None),
        }
    }
    Ok(Some(coins))
}
