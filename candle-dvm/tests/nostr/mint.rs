//! Mints: one of the tests' own, or with `CASHU_VENV`, the folder that it is installed in, PyPI's cashu with a wallet that pays all invoices.

use ring::digest::{digest, SHA256};
use secp256k1::{PublicKey, Scalar, Secp256k1, SecretKey};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub enum Mint {
    Own(OwnMint),
    Foreign(Nutshell),
}

impl Mint {
    pub fn start() -> Self {
        match std::env::var_os("CASHU_VENV") {
            None => Self::Own(OwnMint::start()),
            Some(venv) => Self::Foreign(Nutshell::start(venv.into())),
        }
    }

    pub fn url(&self) -> &str {
        match self {
            Self::Own(mint) => &mint.url,
            Self::Foreign(mint) => &mint.url,
        }
    }

    /// A token of this worth, from another wallet.
    pub fn token(&self, sat: u64) -> String {
        match self {
            Self::Own(mint) => mint.token(sat),
            Self::Foreign(mint) => mint.send(sat, None),
        }
    }

    /// The worth of a token to a wallet, or nothing if it is spent.
    pub fn receive(&self, token: &str) -> Option<u64> {
        match self {
            Self::Own(mint) => mint.receive(token),
            Self::Foreign(mint) => mint.receive(token),
        }
    }
}

/// The fee of 100 thousandths of a satoshi for each coin, as PyPI's mint has it.
pub fn fee(coins: u64) -> u64 {
    coins.div_ceil(10)
}

#[derive(Default)]
struct State {
    asked: usize,
    held: bool,
    swaps: usize,
    spent: BTreeSet<String>,
    /// By what is signed.
    signed: BTreeMap<String, Value>,
}

pub struct OwnMint {
    pub url: String,
    state: Arc<Mutex<State>>,
    made: Mutex<u64>,
}

const KEYSET: &str = "00ad268c4d1f5826";

fn key(amount: u64) -> SecretKey {
    SecretKey::from_slice(&[amount.trailing_zeros() as u8 + 1; 32]).unwrap()
}

/// A point for a secret, by NUT-00.
fn point(secret: &str) -> PublicKey {
    let hash = |bytes: &[u8]| digest(&SHA256, bytes).as_ref().to_vec();
    let first = hash(&[b"Secp256k1_HashToCurve_Cashu_", secret.as_bytes()].concat());
    (0u32..)
        .find_map(|counter| {
            let x = hash(&[&first[..], &counter.to_le_bytes()].concat());
            PublicKey::from_slice(&[&[2], &x[..]].concat()).ok()
        })
        .unwrap()
}

fn sign(amount: u64, point: &PublicKey) -> String {
    let scalar = Scalar::from(key(amount));
    point
        .mul_tweak(&Secp256k1::new(), &scalar)
        .unwrap()
        .to_string()
}

impl OwnMint {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        // It ends with the tests' process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || answer(&stream, &state));
            }
        });
        Self {
            url,
            state,
            made: Mutex::new(0),
        }
    }

    /// The number of requests so far.
    pub fn asked(&self) -> usize {
        self.state.lock().unwrap().asked
    }

    /// Number of swaps so far.
    pub fn swaps(&self) -> usize {
        self.state.lock().unwrap().swaps
    }

    /// Does swaps from now on and keeps the answers back, or no longer.
    pub fn hold(&self, on: bool) {
        self.state.lock().unwrap().held = on;
    }

    /// `cashuA…`, as older wallets write it.
    fn token(&self, sat: u64) -> String {
        let mut made = self.made.lock().unwrap();
        let amounts = (0..16)
            .map(|bit| 1 << bit)
            .filter(|amount| sat & amount != 0);
        let proofs = amounts.map(|amount| {
            *made += 1;
            let secret = format!("made {made} at {}", self.url);
            json!({"amount": amount, "id": KEYSET, "C": sign(amount, &point(&secret)), "secret": secret})
        });
        let token = json!({"unit": "sat", "token": [{"mint": self.url, "proofs": proofs.collect::<Vec<_>>()}]});
        use base64::Engine;
        let text = base64::engine::general_purpose::URL_SAFE.encode(token.to_string());
        format!("cashuA{text}")
    }

    fn receive(&self, token: &str) -> Option<u64> {
        let proofs = candle_dvm::payment::cashu::Token::read(token)
            .unwrap()
            .proofs;
        let proofs = serde_json::to_value(proofs).unwrap();
        let mut state = self.state.lock().unwrap();
        spend(&mut state, &proofs).ok()
    }
}

/// Takes coins, and returns their worth without the fee.
fn spend(state: &mut State, inputs: &Value) -> Result<u64, (u64, &'static str)> {
    let inputs = inputs.as_array().unwrap();
    let (mut worth, mut secrets) = (0, BTreeSet::new());
    for input in inputs {
        let (secret, amount) = (
            input["secret"].as_str().unwrap(),
            input["amount"].as_u64().unwrap(),
        );
        if input["id"] != KEYSET || input["C"] != sign(amount, &point(secret)).as_str() {
            return Err((10001, "the proof is not valid"));
        }
        if state.spent.contains(secret) || !secrets.insert(secret.to_string()) {
            return Err((11001, "Token already spent."));
        }
        worth += amount;
    }
    state.spent.extend(secrets);
    Ok(worth - fee(inputs.len() as u64))
}

fn swap(state: &mut State, body: &Value) -> Result<Value, (u64, &'static str)> {
    let outputs = body["outputs"].as_array().unwrap();
    let spent = state.spent.clone();
    let worth = spend(state, &body["inputs"])?;
    if outputs
        .iter()
        .map(|output| output["amount"].as_u64().unwrap())
        .sum::<u64>()
        != worth
    {
        state.spent = spent;
        return Err((11005, "Transaction is not balanced"));
    }
    state.swaps += 1;
    let signature = |output: &Value| {
        let amount = output["amount"].as_u64().unwrap();
        let blinded: PublicKey = output["B_"].as_str().unwrap().parse().unwrap();
        json!({"amount": amount, "id": KEYSET, "C_": sign(amount, &blinded)})
    };
    let signatures: Vec<Value> = outputs.iter().map(signature).collect();
    for (output, signature) in outputs.iter().zip(&signatures) {
        let blinded = output["B_"].as_str().unwrap().to_string();
        state.signed.insert(blinded, signature.clone());
    }
    Ok(json!({"signatures": signatures}))
}

fn restore(state: &State, body: &Value) -> Value {
    let outputs = body["outputs"].as_array().unwrap().iter();
    let known = outputs.filter_map(|output| {
        let signature = state.signed.get(output["B_"].as_str()?)?;
        Some((output.clone(), signature.clone()))
    });
    let (outputs, signatures): (Vec<_>, Vec<_>) = known.unzip();
    json!({"outputs": outputs, "signatures": signatures})
}

fn answer(mut stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let amounts = (0..16).map(|bit| 1u64 << bit);
    let done = {
        let mut state = state.lock().unwrap();
        state.asked += 1;
        match first.split(' ').nth(1).unwrap() {
            "/v1/keysets" => Ok(
                json!({"keysets": [{"id": KEYSET, "unit": "sat", "active": true, "input_fee_ppk": 100}]}),
            ),
            "/v1/swap" => swap(&mut state, &body),
            "/v1/restore" => Ok(restore(&state, &body)),
            path if path.ends_with(KEYSET) => {
                let public = |amount| PublicKey::from_secret_key(&Secp256k1::new(), &key(amount));
                let keys = amounts.map(|amount| (amount.to_string(), public(amount).to_string()));
                let keys: BTreeMap<String, String> = keys.collect();
                Ok(json!({"keysets": [{"id": KEYSET, "unit": "sat", "keys": keys}]}))
            }
            path => panic!("{path}"),
        }
    };
    while first.contains("swap") && state.lock().unwrap().held {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, json) = match done {
        Ok(json) => ("200 OK", json),
        Err((code, detail)) => ("400 Bad Request", json!({"code": code, "detail": detail})),
    };
    let json = json.to_string();
    // Whoever asked may have gone.
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{json}",
        json.len()
    );
}

/// PyPI's mint and its wallet, with a database each.
pub struct Nutshell {
    url: String,
    venv: PathBuf,
    folder: tempfile::TempDir,
    process: Child,
}

impl Nutshell {
    fn start(venv: PathBuf) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let process = Command::new(venv.join("bin/mint"))
            .env("HOME", folder.path())
            .env("TOR", "false")
            .env("MINT_BACKEND_BOLT11_SAT", "FakeWallet")
            .env("FAKEWALLET_BRR", "true")
            .env("FAKEWALLET_DELAY_INCOMING_PAYMENT", "0")
            .env("MINT_PRIVATE_KEY", "of a test")
            .env("MINT_LISTEN_HOST", "127.0.0.1")
            .env("MINT_LISTEN_PORT", port.to_string())
            .env("MINT_DATABASE", folder.path().join("mint"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mint = Self {
            url: format!("http://127.0.0.1:{port}"),
            venv,
            folder,
            process,
        };
        let log = || std::fs::read_to_string(mint.folder.path().join("log")).unwrap();
        super::wait::wait_until(log, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        mint.wallet(&["invoice", "1000"]);
        mint
    }

    /// The wallet's output.
    fn try_wallet(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(self.venv.join("bin/cashu"))
            .args(["-h", &self.url, "-y"])
            .args(args)
            .env("HOME", self.folder.path())
            .env("MINT_URL", &self.url)
            .env("TOR", "false")
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() && !text.contains("Error") {
            Ok(text)
        } else {
            Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
        }
    }

    fn wallet(&self, args: &[&str]) -> String {
        self.try_wallet(args).unwrap()
    }

    fn balance(&self) -> u64 {
        let text = self.wallet(&["balance"]);
        let sat = text.split_once("Balance: ").unwrap().1;
        sat.split(' ').next().unwrap().parse().unwrap()
    }

    /// A token, which only this key can spend if there is one.
    pub fn send(&self, sat: u64, lock: Option<&str>) -> String {
        let sat = sat.to_string();
        let mut args = vec!["send", &sat];
        let lock = lock.map(|key| format!("P2PK:{key}"));
        args.extend(lock.iter().flat_map(|lock| ["--lock", lock]));
        let text = self.wallet(&args);
        let token = text.lines().find(|line| line.starts_with("cashu"));
        token.unwrap_or_else(|| panic!("{text}")).to_string()
    }

    fn receive(&self, token: &str) -> Option<u64> {
        let before = self.balance();
        if let Err(problem) = self.try_wallet(&["receive", token.trim()]) {
            println!("{problem}");
            return None;
        }
        Some(self.balance() - before).filter(|sat| *sat > 0)
    }
}

impl Drop for Nutshell {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
