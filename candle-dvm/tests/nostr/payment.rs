//! Payment first: one invoice for each job, over restarts, from a wallet behind NIP-47.

use super::relay::TestRelay;
use super::served::{Customer, Served};
use super::wait::wait_until;
use candle_dvm::jobs::Invoice;
use candle_dvm::nip90::{crypto, Feedback, Status};
use candle_dvm::payment::nwc::Wallet;
use candle_dvm::payment::Payment;
use candle_dvm::platform::Boxed;
use candle_dvm::service::now;
use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind, Tag};
use serde_json::{json, Value};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::Arc;

/// A wallet whose one invoice is paid when the test says so.
#[derive(Default)]
struct TestWallet {
    made: AtomicU32,
    paid: AtomicBool,
}

impl Payment for TestWallet {
    fn price_msat(&self) -> u64 {
        1000
    }

    fn invoice<'a>(&'a self, amount_msat: u64, _: &'a str) -> Boxed<'a, Result<Invoice, String>> {
        let number = self.made.fetch_add(1, SeqCst);
        Box::pin(std::future::ready(Ok(Invoice {
            bolt11: format!("lnbc{number}"),
            payment_hash: number.to_string(),
            amount_msat,
            expires: now() + 600,
            paid: false,
        })))
    }

    fn is_paid<'a>(&'a self, _: &'a Invoice) -> Boxed<'a, Result<bool, String>> {
        Box::pin(std::future::ready(Ok(self.paid.load(SeqCst))))
    }
}

#[test]
fn a_paid_job_waits_for_its_one_invoice_over_a_restart() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    let wallet = Arc::new(TestWallet::default());
    let served = Served::paid(&[&relay], dir.path(), keys.clone(), wallet.clone(), |_| ());
    let customer = Customer::new();
    let job = customer.request("a");
    relay.publish(&job);
    relay.wait_for(7000, 1);
    let asked = Feedback::read(&relay.of_kind(7000)[0], &customer.0).unwrap();
    assert_eq!(asked.job, job.id);
    assert_eq!(asked.status, Status::PaymentRequired);
    assert_eq!(asked.amount_msat, Some(1000));
    assert_eq!(asked.invoice.as_deref(), Some("lnbc0"));
    assert_eq!(served.echo.started.load(SeqCst), 0);
    drop(served);
    wallet.paid.store(true, SeqCst);
    let served = Served::paid(&[&relay], dir.path(), keys, wallet.clone(), |_| ());
    let result = customer.read(&relay.wait_for(6050, 1)[0]);
    assert_eq!(result.amount_msat, Some(1000));
    assert_eq!(result.invoice.as_deref(), Some("lnbc0"), "the one paid");
    assert_eq!(wallet.made.load(SeqCst), 1);
    drop(served);
}

/// A wallet's side of NIP-47: reads one request, answers it with `result`, and returns it. A forgery by a third party comes first.
fn answer(relay: &TestRelay, wallet: &Keys, count: usize, result: Value, forged: Value) -> Value {
    let request = relay.wait_for(23194, count).pop().unwrap();
    let (text, scheme) = crypto::decrypt(wallet, &request.pubkey, &request.content).unwrap();
    let reply = |keys: &Keys, result: &Value| {
        let text = json!({ "result_type": "x", "result": result }).to_string();
        let content = scheme.encrypt(keys, &request.pubkey, &text).unwrap();
        let tags = [["p", &request.pubkey.to_hex()], ["e", &request.id.to_hex()]];
        EventBuilder::new(Kind::from_u16(23195), content)
            .tags(tags.map(|tag| Tag::parse(tag).unwrap()))
            .finalize(keys)
            .unwrap()
    };
    relay.publish(&reply(&Keys::generate(), &forged));
    relay.publish(&reply(wallet, &result));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_wallet_makes_invoices_and_reports_their_payment() {
    let relay = TestRelay::start();
    let wallet = Keys::generate();
    let secret = Keys::generate().secret_key().to_secret_hex();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wallet");
    let public = wallet.public_key().to_hex();
    let address = format!(
        "nostr+walletconnect://{public}?relay={}&secret={secret}",
        relay.url
    );
    std::fs::write(&file, address).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let err = Wallet::connect(&file, 1).err().unwrap().to_string();
        assert!(err.contains("chmod 600") && !err.contains(&secret), "{err}");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let payment = Arc::new(Wallet::connect(&file, 1000).unwrap());
    // Its subscription is in transit.
    let alone = || "the wallet does not connect";
    wait_until(alone, || relay.connections() > 0);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let asking = payment.clone();
    let invoice = runtime.spawn(async move { asking.invoice(1000, "a job").await });
    let made = json!({ "invoice": "lnbc1", "payment_hash": "ab", "expires_at": u64::MAX });
    let asked = answer(
        &relay,
        &wallet,
        1,
        made,
        json!({ "invoice": "lnbcevil", "payment_hash": "" }),
    );
    assert_eq!(asked["method"], "make_invoice");
    assert_eq!(asked["params"]["amount"], 1000);
    let invoice = runtime.block_on(invoice).unwrap().unwrap();
    assert_eq!(invoice.bolt11, "lnbc1");
    // However long the wallet takes it for payable, no job waits for ever.
    assert!(invoice.expires <= now() + 3600);
    for (count, settled) in [(2, false), (3, true)] {
        let asking = payment.clone();
        let looked_up = invoice.clone();
        let paid = runtime.spawn(async move { asking.is_paid(&looked_up).await });
        let result = if settled {
            json!({ "settled_at": now() })
        } else {
            json!({ "settled_at": null })
        };
        let asked = answer(
            &relay,
            &wallet,
            count,
            result,
            json!({ "settled_at": now() }),
        );
        assert_eq!(asked["params"]["payment_hash"], "ab");
        assert_eq!(runtime.block_on(paid).unwrap(), Ok(settled));
    }
    std::fs::write(&file, "nostr+walletconnect://nothing").unwrap();
    let err = Wallet::connect(&file, 1).err().unwrap().to_string();
    assert!(err.contains("wallet") && !err.contains("nothing"), "{err}");
}
