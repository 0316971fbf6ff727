//! Tokens as text (NUT-00): read in the forms `cashuA` (JSON) and `cashuB` (CBOR), written in the second.

use super::curve::{from_hex, hex};
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::DecodePaddingMode;
use base64::{alphabet, Engine};
use minicbor::data::Type;
use minicbor::{Decoder, Encoder};
use serde::{Deserialize, Serialize};

/// The most bytes of a token, and of proofs in it: an event holds no more.
const MOST_BYTES: usize = 256 * 1024;
const MOST_PROOFS: usize = 1000;

/// With or without padding: both are in use.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A coin. Whoever knows it can spend it, so it has no `Debug` form.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Its worth, in the token's unit.
    pub amount: u64,
    /// The id of the keys that signed it.
    pub id: String,
    /// A text, usually random, that the mint has signed.
    pub secret: String,
    /// The mint's signature, a point.
    #[serde(rename = "C")]
    pub c: String,
    /// The signatures that open a locked coin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witness: Option<String>,
}

/// Coins of one mint.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The mint's address.
    pub mint: String,
    /// The unit of amounts, such as `sat`.
    pub unit: String,
    /// The coins.
    pub proofs: Vec<Proof>,
}

#[derive(Deserialize)]
struct V3 {
    token: Vec<V3Entry>,
    unit: Option<String>,
}

#[derive(Deserialize)]
struct V3Entry {
    mint: String,
    proofs: Vec<Proof>,
}

impl Token {
    /// Reads a token. What is wrong is never quoted: it is money.
    ///
    /// # Errors
    /// In one line: no token, one of several mints, or one without coins.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong = || "not a Cashu token: expected cashuA… or cashuB…".to_string();
        let text = text.trim().trim_start_matches("cashu:");
        if text.len() > MOST_BYTES {
            return Err(format!("the token has more than {MOST_BYTES} bytes"));
        }
        let body = |body: &str| BASE64.decode(body).map_err(|_| wrong());
        let token = match (text.strip_prefix("cashuA"), text.strip_prefix("cashuB")) {
            (Some(rest), _) => {
                let v3: V3 = serde_json::from_slice(&body(rest)?).map_err(|_| wrong())?;
                let unit = v3.unit.unwrap_or_else(|| "sat".to_string());
                let [entry] = <[V3Entry; 1]>::try_from(v3.token)
                    .map_err(|_| "the token is of several mints; send one of each".to_string())?;
                Self {
                    mint: entry.mint,
                    unit,
                    proofs: entry.proofs,
                }
            }
            (_, Some(rest)) => read_v4(&body(rest)?).map_err(|_| wrong())?,
            _ => return Err(wrong()),
        };
        if token.proofs.is_empty() || token.proofs.len() > MOST_PROOFS {
            return Err(format!(
                "the token has {} coins; expected 1 to {MOST_PROOFS}",
                token.proofs.len()
            ));
        }
        Ok(token)
    }

    /// The sum, `None` if it is more than there are numbers.
    pub fn amount(&self) -> Option<u64> {
        amount(&self.proofs)
    }

    /// The token as `cashuB…`.
    ///
    /// # Errors
    /// A keyset or a signature that is not hexadecimal.
    pub fn write(&self) -> Result<String, String> {
        let wrong = |_| "a coin cannot be written".to_string();
        let mut ids: Vec<&str> = self.proofs.iter().map(|proof| proof.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut cbor = Encoder::new(Vec::new());
        let bytes = |text: &str| from_hex(text).ok_or("a coin has a key that is not hexadecimal");
        let mut write = || -> Result<(), Box<dyn std::error::Error>> {
            cbor.map(3)?
                .str("m")?
                .str(&self.mint)?
                .str("u")?
                .str(&self.unit)?;
            cbor.str("t")?.array(ids.len() as u64)?;
            for id in &ids {
                let of_id = self.proofs.iter().filter(|proof| proof.id == *id);
                cbor.map(2)?.str("i")?.bytes(&bytes(id)?)?;
                cbor.str("p")?.array(of_id.clone().count() as u64)?;
                for proof in of_id {
                    cbor.map(3 + u64::from(proof.witness.is_some()))?;
                    cbor.str("a")?
                        .u64(proof.amount)?
                        .str("s")?
                        .str(&proof.secret)?;
                    cbor.str("c")?.bytes(&bytes(&proof.c)?)?;
                    if let Some(witness) = &proof.witness {
                        cbor.str("w")?.str(witness)?;
                    }
                }
            }
            Ok(())
        };
        write().map_err(wrong)?;
        Ok(format!("cashuB{}", BASE64.encode(cbor.into_writer())))
    }
}

/// The sum of coins, `None` if it is more than there are numbers.
pub fn amount(proofs: &[Proof]) -> Option<u64> {
    proofs
        .iter()
        .try_fold(0u64, |sum, proof| sum.checked_add(proof.amount))
}

type Cbor<T> = Result<T, minicbor::decode::Error>;

fn read_v4(bytes: &[u8]) -> Cbor<Token> {
    let mut token = Token {
        mint: String::new(),
        unit: "sat".to_string(),
        proofs: Vec::new(),
    };
    let mut decoder = Decoder::new(bytes);
    fields(&mut decoder, |key, decoder| {
        match key {
            "m" => token.mint = decoder.str()?.to_string(),
            "u" => token.unit = decoder.str()?.to_string(),
            "t" => items(decoder, |decoder| {
                let from = token.proofs.len();
                let mut id = String::new();
                fields(decoder, |key, decoder| {
                    match key {
                        "i" => id = hex(decoder.bytes()?),
                        "p" => items(decoder, |decoder| {
                            token.proofs.push(proof(decoder)?);
                            Ok(())
                        })?,
                        _ => decoder.skip()?,
                    }
                    Ok(())
                })?;
                for proof in &mut token.proofs[from..] {
                    proof.id.clone_from(&id);
                }
                Ok(())
            })?,
            _ => decoder.skip()?,
        }
        Ok(())
    })?;
    Ok(token)
}

fn proof(decoder: &mut Decoder) -> Cbor<Proof> {
    let mut proof = Proof {
        amount: 0,
        id: String::new(),
        secret: String::new(),
        c: String::new(),
        witness: None,
    };
    fields(decoder, |key, decoder| {
        match key {
            "a" => proof.amount = decoder.u64()?,
            "s" => proof.secret = decoder.str()?.to_string(),
            "c" => proof.c = hex(decoder.bytes()?),
            "w" => proof.witness = Some(decoder.str()?.to_string()),
            _ => decoder.skip()?,
        }
        Ok(())
    })?;
    Ok(proof)
}

/// Each entry of a map by its key, with its value to be read or skipped.
fn fields<'b>(
    decoder: &mut Decoder<'b>,
    mut each: impl FnMut(&'b str, &mut Decoder<'b>) -> Cbor<()>,
) -> Cbor<()> {
    let count = decoder.map()?;
    repeat(decoder, count, |decoder| {
        let key = decoder.str()?;
        each(key, decoder)
    })
}

fn items<'b>(
    decoder: &mut Decoder<'b>,
    each: impl FnMut(&mut Decoder<'b>) -> Cbor<()>,
) -> Cbor<()> {
    let count = decoder.array()?;
    repeat(decoder, count, each)
}

/// As often as the count says, or without one until the mark of the end.
fn repeat<'b>(
    decoder: &mut Decoder<'b>,
    count: Option<u64>,
    mut each: impl FnMut(&mut Decoder<'b>) -> Cbor<()>,
) -> Cbor<()> {
    match count {
        Some(count) => (0..count).try_for_each(|_| each(decoder)),
        None => {
            while decoder.datatype()? != Type::Break {
                each(decoder)?;
            }
            decoder.skip()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 sat of a mint that is gone, as PyPI's wallet writes them.
    const FOREIGN: &str = "cashuBo2F0gaJhaUgAa4uVh0VQn2FwgqNhYQhhc3hAZDBkMjUzMmU4NDkzMjMwMzRkN2UwNzdhYzYxNjcyNWYwZTQyNjhhZjQ3ZmM1Mjg5ZjJlZDBlNzdmY2RlMWM1NmFjWCEDw2EWhh2anQgsbzUUbgnPQzZ6jQ_ZdM7vTO9cHEcN11KjYWECYXN4QDYzMWZhYmIxMDE4NWVjYWRmOGVkMzRjZjUxYTU2M2FhMDFiZTcwMDAxMmFjMjAxYjFmYzFhMzYwMGE2OGNkYTdhY1ghA2Xlcq54N5FHWuWAfDc6vv6VZ4h-PM-ZA9TW1X-1jpR0YW12aHR0cDovLzEyNy4wLjAuMTozMzM4MGF1Y3NhdA";

    fn problem(text: &str) -> String {
        Token::read(text).err().expect("a problem")
    }

    #[test]
    fn a_wallets_token_reads_and_what_is_written_reads_back() {
        let token = Token::read(FOREIGN).unwrap();
        assert_eq!(
            (token.mint.as_str(), token.unit.as_str(), token.amount()),
            ("http://127.0.0.1:33380", "sat", Some(10))
        );
        assert_eq!(token.proofs[0].id, "006b8b958745509f");
        let mut locked = token.clone();
        locked.proofs[1].witness = Some("{}".to_string());
        locked.proofs[1].id = "00ad268c4d1f5826".to_string();
        for written in [token, locked] {
            let text = written.write().unwrap();
            assert!(Token::read(&format!(" cashu:{text}\n")).unwrap() == written);
        }
    }

    #[test]
    fn older_tokens_are_json() {
        let json = |entries: &str| {
            let json = format!(r#"{{"token":[{entries}],"memo":"a"}}"#);
            format!("cashuA{}", BASE64.encode(json))
        };
        let entry =
            r#"{"mint":"https://a","proofs":[{"amount":2,"id":"00","secret":"s","C":"02"}]}"#;
        let token = Token::read(&json(entry)).unwrap();
        assert_eq!((token.unit.as_str(), token.amount()), ("sat", Some(2)));
        assert!(problem(&json(&format!("{entry},{entry}"))).contains("several mints"));
        assert!(problem(&json(r#"{"mint":"https://a","proofs":[]}"#)).contains("0 coins"));
    }

    #[test]
    fn other_texts_are_refused_and_not_quoted() {
        for end in 6..FOREIGN.len() {
            assert!(Token::read(&FOREIGN[..end]).is_err(), "{end}");
        }
        for wrong in ["", "cashuC", "cashuAhello", "cashuB\u{e9}", "cashuB//"] {
            assert!(problem(wrong).starts_with("not a Cashu token"), "{wrong}");
        }
        // A map that claims to have more entries than there are numbers.
        let endless = [&[0xbb][..], &[0xff; 8]].concat();
        assert!(problem(&format!("cashuB{}", BASE64.encode(endless))).starts_with("not a"));
        let long = format!("cashuA{}", "a".repeat(MOST_BYTES));
        assert!(problem(&long).contains("bytes"));
    }
}
