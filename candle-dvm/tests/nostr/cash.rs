//! Payment by Cashu tokens: once, with the change, and back where there is no result; over crashes too.

use super::commands::Daemon;
use super::mint::{fee, Mint, OwnMint};
use super::relay::TestRelay;
use super::served::{error, feedback, Customer, Served, HELD};
use super::wait::wait_until;
use crate::cli::{run, stdout};
use candle_dvm::nip90::{
    cancellation, Announcement, Feedback, JobKind, JobRequest, Scheme, Status,
};
use candle_dvm::payment::cashu::purse::Purse;
use candle_dvm::payment::cashu::{send, Till, Token};
use candle_dvm::payment::WithCash;
use candle_dvm::service::now;
use nostr::prelude::{Event, Keys, PublicKey};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

const PRICE: u64 = 7;

fn job(customer: &Customer, provider: PublicKey, prompt: &str, token: Option<&str>) -> Event {
    customer.request_with(prompt, |request: &mut JobRequest| {
        request.cashu = token.map(str::to_string);
        request.providers = vec![provider];
        request.encryption = Some(Scheme::Nip44);
    })
}

fn served(relay: &TestRelay, dir: &Path, mint: &Mint) -> Served {
    let keys = Keys::generate();
    let (mints, price_msat) = ([format!("{}/", mint.url())], PRICE * 1000 - 1);
    let cash = Till::open(
        &dir.join("cashu"),
        &mints,
        price_msat,
        Arc::new(keys.clone()),
    )
    .unwrap();
    let payment = WithCash {
        wallet: None,
        cash,
        price_msat,
    };
    Served::paid(&[relay], dir, keys, Arc::new(payment), |settings| {
        settings.running = 1
    })
}

fn balance(dir: &Path) -> u64 {
    let purse = Purse::open(&dir.join("cashu")).unwrap();
    send::balance(&purse).unwrap().into_values().sum()
}

fn coins(token: &str) -> u64 {
    Token::read(token).unwrap().proofs.len() as u64
}

fn failed(relay: &TestRelay, customer: &Customer, job: &Event) -> Feedback {
    error(relay, customer, job);
    let mut all = feedback(relay, customer, job).into_iter();
    all.rfind(|told| told.status == Status::Error).unwrap()
}

#[test]
fn a_token_pays_once_and_what_is_too_much_comes_back() {
    let mint = Mint::start();
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let served = served(&relay, dir.path(), &mint);
    let us = served.keys.public_key();
    let announced = Announcement::read(&relay.wait_for(31990, 1)[0]).unwrap();
    assert_eq!(announced.mints, [mint.url()]);
    let customer = Customer::new();
    let token = mint.token(21);
    relay.publish(&job(&customer, us, "hello", Some(&token)));
    let result = customer.read(&relay.wait_for(6050, 1)[0]);
    assert!(result.text.starts_with("hello "));
    let change = result.cashu.unwrap();
    let left = 21 - PRICE - fee(coins(&token));
    assert_eq!(Token::read(&change).unwrap().amount(), Some(left));
    assert_eq!(mint.receive(&change), Some(left - fee(coins(&change))));
    assert_eq!(balance(dir.path()), PRICE);

    let again = job(&customer, us, "again", Some(&token));
    relay.publish(&again);
    let refused = failed(&relay, &customer, &again);
    assert!(refused
        .extra
        .unwrap()
        .contains("the mint refuses the token"));
    assert_eq!(refused.cashu, None);
    assert_eq!(balance(dir.path()), PRICE);
    let other = OwnMint::start();
    let theirs = Mint::Own(other);
    let foreign = theirs.token(21);
    for (token, part) in [
        (
            Some(mint.token(PRICE - 1)),
            "worth less than the price, 7 sat",
        ),
        (Some(foreign), "another mint"),
        (Some("cashuBhello".to_string()), "not a Cashu token"),
        (None, "a job costs 6999 msat"),
    ] {
        let bad = job(&customer, us, part, token.as_deref());
        relay.publish(&bad);
        let reason = error(&relay, &customer, &bad);
        assert!(reason.contains(part), "{reason}");
    }
    if let Mint::Own(other) = &theirs {
        assert_eq!(other.asked(), 0, "it is not on the list");
    }
    for event in relay.events() {
        let json = event.as_json();
        assert!(
            !json.contains("cashuA") && !json.contains("cashuB"),
            "{json}"
        );
    }
}

#[test]
fn what_was_paid_comes_back_where_there_is_no_result() {
    let mint = Mint::start();
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let served = served(&relay, dir.path(), &mint);
    let us = served.keys.public_key();
    let customer = Customer::new();
    // Nobody pays for what cannot be begun.
    let unspent = mint.token(9);
    let empty = job(&customer, us, " ", Some(&unspent));
    relay.publish(&empty);
    assert_eq!(failed(&relay, &customer, &empty).cashu, None);
    assert_eq!(mint.receive(&unspent), Some(9 - fee(2)));

    let panics = job(&customer, us, "panic", Some(&mint.token(9)));
    relay.publish(&panics);
    let back = failed(&relay, &customer, &panics).cashu.unwrap();
    assert_eq!(Token::read(&back).unwrap().amount(), Some(9 - fee(2)));
    assert_eq!(mint.receive(&back), Some(9 - fee(2) - fee(coins(&back))));

    served.echo.pause.store(HELD, SeqCst);
    relay.publish(&job(&customer, us, "runs", Some(&mint.token(9))));
    let runs = || "nothing runs".to_string();
    wait_until(runs, || served.echo.started.load(SeqCst) == 2);
    let waits = job(&customer, us, "waits", Some(&mint.token(9)));
    relay.publish(&waits);
    let processing = || {
        let told = feedback(&relay, &customer, &waits);
        told.iter().any(|told| told.status == Status::Processing)
    };
    wait_until(|| "it is not paid".to_string(), processing);
    std::thread::sleep(Duration::from_millis(300));
    relay.publish(&cancellation::write(&customer.0, now(), JobKind::Text, &waits.id).unwrap());
    let back = failed(&relay, &customer, &waits).cashu.unwrap();
    assert_eq!(mint.receive(&back), Some(9 - fee(2) - fee(coins(&back))));
    assert_eq!(balance(dir.path()), 0);
    served.echo.pause.store(0, SeqCst);
    relay.wait_for(6050, 1);
    wait_until(
        || "nothing was earned".to_string(),
        || balance(dir.path()) == PRICE,
    );
}

#[test]
fn a_token_that_is_locked_to_the_service_pays() {
    let mint = Mint::start();
    // The mint of the tests' own does not look at locks.
    let Mint::Foreign(nutshell) = &mint else {
        return;
    };
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let served = served(&relay, dir.path(), &mint);
    let us = served.keys.public_key();
    let customer = Customer::new();
    let lock = |key: PublicKey| format!("02{}", key.to_hex());
    let ours = nutshell.send(9, Some(&lock(us)));
    relay.publish(&job(&customer, us, "locked", Some(&ours)));
    relay.wait_for(6050, 1);
    let theirs = nutshell.send(9, Some(&lock(Keys::generate().public_key())));
    let other = job(&customer, us, "other", Some(&theirs));
    relay.publish(&other);
    let reason = error(&relay, &customer, &other);
    assert!(reason.contains("not to this service's key"), "{reason}");
    assert_eq!(balance(dir.path()), PRICE);
}

fn daemon(relay: &TestRelay, dir: &Path, mint: &Mint) -> Daemon {
    let config = dir.join("serve.toml");
    let text = format!(
        "price-msat = 7000\ncashu-mints = [{:?}]\nrunning = 1\n",
        mint.url()
    );
    std::fs::write(&config, text).unwrap();
    Daemon::start(&[&relay.url], dir, &["--config", config.to_str().unwrap()])
}

/// The output of `candle-dvm cashu`.
fn cashu(dir: &Path, args: &[&str]) -> String {
    let data = dir.join("data").display().to_string();
    stdout(&run(&[&["cashu"], args, &["--data-dir", &data]].concat()))
}

fn long(customer: &Customer, provider: PublicKey, token: &str) -> Event {
    customer.request_with("fn main() {", |request: &mut JobRequest| {
        request.params = vec![("max_tokens".to_string(), "400".to_string())];
        request.cashu = Some(token.to_string());
        request.providers = vec![provider];
        request.encryption = Some(Scheme::Nip44);
    })
}

#[test]
fn a_job_is_paid_and_answered_once_though_the_service_is_killed_in_between() {
    let mint = Mint::start();
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let mut service = daemon(&relay, dir.path(), &mint);
    let us = relay.wait_for(31990, 1)[0].pubkey;
    let held = dir.path().join("data/cashu/held");
    let count = || std::fs::read_dir(&held).map_or(0, |files| files.count());
    let mut kills = 0;
    for paid in 1..=3 {
        let customer = Customer::new();
        let token = mint.token(9);
        let asked = long(&customer, us, &token);
        relay.publish(&asked);
        wait_until(|| "no token was taken".to_string(), || count() > 0);
        let answered = relay.of_kind(6050).len() >= paid;
        service.0.kill().unwrap();
        service.0.wait().unwrap();
        kills += usize::from(!answered);
        service = daemon(&relay, dir.path(), &mint);
        let result = customer.read(&relay.wait_for(6050, paid)[paid - 1]);
        assert_eq!(result.job, asked.id);
        let back = result.cashu.unwrap();
        let left = Token::read(&back).unwrap().amount();
        assert_eq!(left, Some(9 - PRICE - fee(coins(&token))));
        assert_eq!(mint.receive(&token), None, "it is spent");
    }
    assert!(kills > 0, "the service was always faster than the test");
    wait_until(|| "money is held".to_string(), || count() == 0);
    assert_eq!(relay.of_kind(6050).len(), 3);
    assert_eq!(
        cashu(dir.path(), &["balance"]),
        format!("21 sat {}\n", mint.url())
    );
    let three = cashu(dir.path(), &["send", "3"]);
    assert_eq!(Token::read(&three).unwrap().amount(), Some(3));
    assert_eq!(mint.receive(&three), Some(3 - fee(coins(&three))));
    assert_eq!(
        cashu(dir.path(), &["balance"]),
        format!("18 sat {}\n", mint.url())
    );
    let rest = cashu(dir.path(), &["send", "all"]);
    assert_eq!(mint.receive(&rest), Some(18 - fee(coins(&rest))));
    assert_eq!(cashu(dir.path(), &["balance"]), "0 sat\n");
    let nothing = run(&[
        "cashu",
        "send",
        "all",
        "--data-dir",
        dir.path().join("data").to_str().unwrap(),
    ]);
    assert!(!nothing.status.success());
}

#[test]
fn coins_whose_signatures_were_lost_with_the_service_are_restored() {
    let own = OwnMint::start();
    own.hold(true);
    let mint = Mint::Own(own);
    let Mint::Own(own) = &mint else { return };
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let service = daemon(&relay, dir.path(), &mint);
    let us = relay.wait_for(31990, 1)[0].pubkey;
    let customer = Customer::new();
    relay.publish(&long(&customer, us, &mint.token(9)));
    wait_until(|| "nothing is swapped".to_string(), || own.swaps() == 1);
    drop(service);
    own.hold(false);
    let _service = daemon(&relay, dir.path(), &mint);
    relay.wait_for(6050, 1);
    let earned = || cashu(dir.path(), &["balance"]) == format!("7 sat {}\n", mint.url());
    wait_until(|| "nothing was earned".to_string(), earned);
    assert_eq!(own.swaps(), 1);
    let three = cashu(dir.path(), &["send", "3"]);
    assert_eq!(Token::read(&three).unwrap().amount(), Some(3));
    assert_eq!(own.swaps(), 1, "of 4, 2 and 1 the last two fit");
}

#[test]
fn the_program_pays_with_a_token() {
    let mint = Mint::start();
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let _service = daemon(&relay, dir.path(), &mint);
    let us = relay.wait_for(31990, 1)[0].pubkey.to_hex();
    let token = mint.token(21);
    let request = [
        "request",
        "--relay",
        &relay.url,
        "--provider",
        &us,
        "--cashu",
        &token,
    ];
    let open = run(&[&request[..], &["fn main() {"]].concat());
    let said = String::from_utf8(open.stderr).unwrap();
    assert!(
        !open.status.success() && said.contains("--encrypt"),
        "{said}"
    );
    let paid = run(&[&request[..], &["--encrypt", "fn main() {"]].concat());
    let said = String::from_utf8(paid.stderr).unwrap();
    assert!(paid.status.success() && !paid.stdout.is_empty(), "{said}");
    let back = said
        .lines()
        .find_map(|line| line.strip_prefix("comes back: "));
    let back = back.unwrap_or_else(|| panic!("{said}"));
    assert_eq!(
        Token::read(back).unwrap().amount(),
        Some(21 - PRICE - fee(coins(&token)))
    );
    cashu(dir.path(), &["send", "3"]);
    // The mint changes a coin of 4.
    let two = cashu(dir.path(), &["send", "2"]);
    assert_eq!(Token::read(&two).unwrap().amount(), Some(2));
    assert_eq!(mint.receive(&two), Some(2 - fee(coins(&two))));
    assert_eq!(
        cashu(dir.path(), &["balance"]),
        format!("1 sat {}\n", mint.url())
    );
    let found = stdout(&run(&["discover", "--relay", &relay.url]));
    assert!(
        found.contains(&format!("takes Cashu tokens of {}", mint.url())),
        "{found}"
    );
}
