//! Invoices from a wallet by Nostr Wallet Connect (NIP-47).

use super::Payment;
use crate::jobs::Invoice;
use crate::key_file::read_file;
use crate::nip90::{crypto, sign, tag, Scheme};
use crate::platform::{self, now, timeout, Boxed};
use crate::relay::driver::{Command, Driver, Report};
use crate::relay::{Keep, Reach};
use crate::{Error, Result};
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;
use nostr::nips::nip47::NostrWalletConnectUri;
use nostr::prelude::{Event, EventId, Filter, Keys, Kind, PublicKey};
use serde_json::{json, Value};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const REQUEST: u16 = 23194;
const RESPONSE: u16 = 23195;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds for which an invoice is to be payable; and those for which a payment is waited for at least and at most, whatever end the
/// wallet names.
const EXPIRY: u64 = 600;
const LEAST_EXPIRY: u64 = 60;
const LONGEST_EXPIRY: u64 = 3600;

/// A wallet that makes invoices. It holds a secret, so it has no `Debug` form.
pub struct Wallet {
    keys: Arc<Keys>,
    wallet: PublicKey,
    price_msat: u64,
    drivers: Vec<Driver>,
    waiting: Arc<Mutex<HashMap<EventId, oneshot::Sender<Event>>>>,
}

impl Wallet {
    /// Connects to the wallet whose `nostr+walletconnect://` address is in `file`, which only its owner may read.
    ///
    /// # Errors
    /// [`Error::Key`], without anything of the address.
    pub fn connect(file: &Path, price_msat: u64) -> Result<Self> {
        let text = read_file(file)?;
        let wrong = || Error::Key {
            place: file.display().to_string(),
            problem: "not a nostr+walletconnect:// URI with a relay and a secret".to_string(),
        };
        let address = NostrWalletConnectUri::parse(text.trim()).map_err(|_| wrong())?;
        if address.relays.is_empty() {
            return Err(wrong());
        }
        let keys = Arc::new(Keys::new(address.secret));
        let (report, mut reports) = mpsc::channel(64);
        let filter = Filter::new()
            .kind(Kind::from_u16(RESPONSE))
            .author(address.public_key)
            .pubkey(keys.public_key())
            .limit(0);
        let start = |relay: &nostr::prelude::RelayUrl| {
            let url = relay.to_string();
            let driver = Driver::start(&url, keys.clone(), Reach::Anywhere, report.clone());
            driver.send(Command::Subscribe {
                name: "wallet".to_string(),
                filter: Box::new(filter.clone()),
                cursor: None,
                once: false,
            });
            driver
        };
        let drivers = address.relays.iter().map(start).collect();
        let waiting: Arc<Mutex<HashMap<EventId, oneshot::Sender<Event>>>> = Arc::default();
        let answers = waiting.clone();
        let wallet = address.public_key;
        platform::spawn(async move {
            while let Some((_, report)) = reports.next().await {
                if let Report::Event(_, event) = report {
                    // Only what the wallet has signed counts; else a relay could say that something was paid.
                    let genuine = event.pubkey == wallet
                        && event.kind.as_u16() == RESPONSE
                        && event.verify().is_ok();
                    let asked = event.tags.event_ids().next();
                    if let (true, Some(asked), Ok(mut answers)) = (genuine, asked, answers.lock()) {
                        if let Some(answer) = answers.remove(&asked) {
                            let _ = answer.send(*event);
                        }
                    }
                }
            }
        });
        Ok(Self {
            keys,
            wallet,
            price_msat,
            drivers,
            waiting,
        })
    }

    /// `keep` decides whether an unreachable relay gets the request once it is reachable, or never.
    async fn call(
        &self,
        method: &str,
        params: Value,
        keep: Keep,
    ) -> std::result::Result<Value, String> {
        let text = json!({ "method": method, "params": params }).to_string();
        // NIP-04 is what every wallet takes.
        let content = Scheme::Nip04
            .encrypt(&self.keys, &self.wallet, &text)
            .map_err(|err| err.to_string())?;
        let tags = vec![tag("p", [self.wallet.to_hex()])];
        let request =
            sign(&self.keys, now(), REQUEST, content, tags).map_err(|err| err.to_string())?;
        let (answer, answered) = oneshot::channel();
        if let Ok(mut waiting) = self.waiting.lock() {
            waiting.insert(request.id, answer);
        }
        for driver in &self.drivers {
            driver.send(Command::Publish(Box::new(request.clone()), keep));
        }
        // Whoever asks may give up before the time is over.
        let _ends_with_us = Asked(&self.waiting, request.id);
        let answered = timeout(TIMEOUT, answered).await;
        let event = match answered {
            Some(Ok(event)) => event,
            _ => return Err(format!("{method}: the wallet did not answer in time")),
        };
        let (text, _) = crypto::decrypt(&self.keys, &self.wallet, &event.content)
            .map_err(|err| err.to_string())?;
        let mut response: Value =
            serde_json::from_str(&text).map_err(|_| format!("{method}: the answer is not JSON"))?;
        if let Some(error) = response.get("error").filter(|error| !error.is_null()) {
            let code = error["code"].as_str().unwrap_or("unknown");
            return Err(format!("{method}: the wallet returned {code}"));
        }
        Ok(response["result"].take())
    }
}

/// A question that is not waited for any more when this goes.
struct Asked<'a>(&'a Mutex<HashMap<EventId, oneshot::Sender<Event>>>, EventId);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Ok(mut waiting) = self.0.lock() {
            waiting.remove(&self.1);
        }
    }
}

impl Payment for Wallet {
    fn price_msat(&self) -> u64 {
        self.price_msat
    }

    fn invoice<'a>(
        &'a self,
        amount_msat: u64,
        memo: &'a str,
    ) -> Boxed<'a, std::result::Result<Invoice, String>> {
        Box::pin(async move {
            let params = json!({ "amount": amount_msat, "description": memo, "expiry": EXPIRY });
            let result = self.call("make_invoice", params, Keep::Until).await?;
            let text = |name: &str| {
                let text = result[name].as_str().filter(|text| !text.is_empty());
                text.map(str::to_string)
                    .ok_or_else(|| format!("make_invoice: the answer has no {name}"))
            };
            let expires = result["expires_at"].as_u64().unwrap_or(now() + EXPIRY);
            Ok(Invoice {
                bolt11: text("invoice")?,
                payment_hash: text("payment_hash")?,
                amount_msat,
                expires: expires.clamp(now() + LEAST_EXPIRY, now() + LONGEST_EXPIRY),
                paid: false,
            })
        })
    }

    fn is_paid<'a>(&'a self, invoice: &'a Invoice) -> Boxed<'a, std::result::Result<bool, String>> {
        Box::pin(async move {
            let params = json!({ "payment_hash": invoice.payment_hash });
            // The service polls this, so requests must not accumulate for an unreachable relay.
            let result = self.call("lookup_invoice", params, Keep::Now).await?;
            let settled = result["settled_at"].as_u64().is_some_and(|at| at > 0);
            Ok(settled || result["state"] == "settled")
        })
    }
}
