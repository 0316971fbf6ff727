//! Jobs that wait for inputs or payment hold no slot of the queue, and do not wait for ever.

use super::relay::TestRelay;
use super::served::{error, feedback, Customer, Served, HELD};
use super::wait::wait_until;
use candle_dvm::jobs::Invoice;
use candle_dvm::nip90::{Input, InputKind, Status};
use candle_dvm::payment::Payment;
use candle_dvm::platform::Boxed;
use candle_dvm::service::now;
use nostr::prelude::{Event, Keys};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A wallet with one invoice for each job, which are paid one by one.
#[derive(Default)]
struct Till {
    made: AtomicU64,
    paid: Mutex<BTreeSet<String>>,
    /// Seconds for which invoices can be paid.
    expiry: AtomicU64,
    /// It makes invoices, and says nothing more.
    silent: AtomicBool,
}

impl Payment for Till {
    fn price_msat(&self) -> u64 {
        1000
    }

    fn invoice<'a>(&'a self, amount_msat: u64, _: &'a str) -> Boxed<'a, Result<Invoice, String>> {
        let number = self.made.fetch_add(1, SeqCst);
        Box::pin(std::future::ready(Ok(Invoice {
            bolt11: format!("lnbc{number}"),
            payment_hash: format!("lnbc{number}"),
            amount_msat,
            expires: now() + self.expiry.load(SeqCst),
            paid: false,
        })))
    }

    fn is_paid<'a>(&'a self, invoice: &'a Invoice) -> Boxed<'a, Result<bool, String>> {
        let is_paid = self.paid.lock().unwrap().contains(&invoice.payment_hash);
        let answer = if self.silent.load(SeqCst) {
            Err("not reached".to_string())
        } else {
            Ok(is_paid)
        };
        Box::pin(std::future::ready(answer))
    }
}

/// The invoice that a customer gets for a job.
fn invoice(relay: &TestRelay, customer: &Customer, job: &Event) -> String {
    let asked = || {
        let told = feedback(relay, customer, job).into_iter();
        told.filter(|told| told.status == Status::PaymentRequired)
            .find_map(|told| told.invoice)
    };
    wait_until(|| format!("no bill for {}", job.id), || asked().is_some());
    asked().unwrap()
}

#[test]
fn jobs_that_wait_for_inputs_keep_nobody_out() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    for _ in 0..9 {
        let stranger = Customer::new();
        for n in 0..8 {
            relay.publish(&stranger.request_with("", |request| {
                request.inputs = vec![Input {
                    kind: InputKind::Job,
                    ..Input::text(format!("{n:064x}"))
                }];
            }));
        }
    }
    served.wait_refused("too_many_waiting", 9 * 6);
    assert_eq!(served.metrics.accepted.load(SeqCst), 9 * 2);
    let honest = Customer::new();
    let jobs = ["a", "b", "c"].map(|prompt| honest.request(prompt));
    jobs.iter().for_each(|job| relay.publish(job));
    relay.wait_for(6050, 3);
}

#[test]
fn unpaid_jobs_keep_nobody_out_who_pays() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let till = Arc::new(Till::default());
    till.expiry.store(600, SeqCst);
    let served = Served::paid(
        &[&relay],
        dir.path(),
        Keys::generate(),
        till.clone(),
        |settings| {
            settings.running = 1;
            settings.queue = 2;
        },
    );
    for n in 0..20 {
        let stranger = Customer::new();
        relay.publish(&stranger.request(&format!("{n}")));
        relay.publish(&stranger.request(&format!("{n} again")));
    }
    wait_until(
        || "not all wait",
        || served.metrics.accepted.load(SeqCst) == 40,
    );
    let honest = Customer::new();
    let job = honest.request("a");
    relay.publish(&job);
    let bill = invoice(&relay, &honest, &job);
    till.paid.lock().unwrap().insert(bill.clone());
    let result = honest.read(&relay.wait_for(6050, 1)[0]);
    assert_eq!((result.job, result.invoice), (job.id, Some(bill)));
}

#[test]
fn an_unpaid_job_ends_with_its_invoice_whatever_the_wallet_says() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let till = Arc::new(Till::default());
    till.expiry.store(1, SeqCst);
    let served = Served::paid(
        &[&relay],
        dir.path(),
        Keys::generate(),
        till.clone(),
        |_| (),
    );
    let customer = Customer::new();
    for (silent, part) in [
        (false, "not paid in time"),
        (true, "the wallet does not report"),
    ] {
        till.silent.store(silent, SeqCst);
        let job = customer.request(part);
        let asked = Instant::now();
        relay.publish(&job);
        let reason = error(&relay, &customer, &job);
        assert!(reason.contains(part), "{reason}");
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    // Its slot is free again.
    assert_eq!(served.echo.started.load(SeqCst), 0);
    till.silent.store(false, SeqCst);
    till.expiry.store(600, SeqCst);
    let job = customer.request("a");
    relay.publish(&job);
    invoice(&relay, &customer, &job);
}

#[test]
fn a_job_that_expires_in_the_queue_is_not_run() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 1;
    });
    served.echo.pause.store(HELD, SeqCst);
    let customers = [Customer::new(), Customer::new()];
    relay.publish(&customers[0].request("a"));
    wait_until(
        || "it does not run",
        || served.echo.started.load(SeqCst) == 1,
    );
    let late = customers[1].request_with("b", |request| request.expiration = Some(now() + 2));
    relay.publish(&late);
    let reason = error(&relay, &customers[1], &late);
    assert!(reason.contains("expired"), "{reason}");
    served.echo.pause.store(0, SeqCst);
    relay.wait_for(6050, 1);
    relay.publish(&customers[0].request("c"));
    relay.wait_for(6050, 2);
    assert_eq!(served.echo.started.load(SeqCst), 2, "a and c");
    let mut told = feedback(&relay, &customers[1], &late);
    told.retain(|feedback| feedback.status == Status::Error);
    assert_eq!(told.len(), 1, "it is said once");
}

#[test]
fn an_unpaid_job_that_expires_is_given_up_unless_it_turns_out_to_be_paid() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let till = Arc::new(Till::default());
    till.expiry.store(600, SeqCst);
    let served = Served::paid(
        &[&relay],
        dir.path(),
        Keys::generate(),
        till.clone(),
        |_| (),
    );
    let customers = [Customer::new(), Customer::new()];
    let ask = |customer: &Customer| {
        let job = customer.request_with("a", |request| request.expiration = Some(now() + 2));
        relay.publish(&job);
        (invoice(&relay, customer, &job), job)
    };
    let (_, unpaid) = ask(&customers[0]);
    let (bill, paid) = ask(&customers[1]);
    // Between two polls of the wallet.
    till.paid.lock().unwrap().insert(bill);
    let reason = error(&relay, &customers[0], &unpaid);
    assert!(reason.contains("expired"), "{reason}");
    let result = customers[1].read(&relay.wait_for(6050, 1)[0]);
    assert_eq!(result.job, paid.id);
    assert_eq!(served.echo.started.load(SeqCst), 1);
}

#[test]
fn when_all_places_are_taken_a_stranger_leaves_for_a_known_customer() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    let known = Customer::new();
    relay.publish(&known.request("a"));
    relay.wait_for(6050, 1);
    let chain = |customer: &Customer| {
        let job = customer.request_with("", |request| {
            request.inputs = vec![Input {
                kind: InputKind::Job,
                ..Input::text("0".repeat(64))
            }];
        });
        relay.publish(&job);
        job
    };
    let strangers: Vec<Customer> = (0..257).map(|_| Customer::new()).collect();
    let jobs: Vec<Event> = strangers.iter().map(chain).collect();
    // Nobody has waited for long enough to have to go for a stranger.
    served.wait_refused("waiting_full", 1);
    assert!(error(&relay, &strangers[256], &jobs[256]).contains("too many jobs are waiting"));
    assert_eq!(served.metrics.accepted.load(SeqCst), 257);
    chain(&known);
    assert!(error(&relay, &strangers[0], &jobs[0]).contains("a newer one replaced it"));
    assert_eq!(served.metrics.accepted.load(SeqCst), 258);
    assert_eq!(served.metrics.errors.load(SeqCst), 1);
}
