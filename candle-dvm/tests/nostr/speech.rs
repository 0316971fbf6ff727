//! Kind 5000: recordings become text, by a tiny Whisper, with a language model and alone.

use super::commands::Daemon;
use super::files::Files;
use super::relay::TestRelay;
use super::served::{error, feedback, Customer, Served};
use super::wait::wait_until;
use crate::cli::{run, stdout};
use crate::transcribe::Folder;
use candle_core::Device;
use candle_dvm::nip90::{
    cancellation, Announcement, Input, InputKind, JobKind, JobRequest, SpeechParams, Status,
};
use candle_dvm::service::offers::Recording;
use candle_dvm::service::speech::Ear;
use candle_dvm::service::{now, Listener, Product};
use candle_engine::speech::SpeechFiles;
use candle_engine::Result;
use nostr::prelude::Event;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

fn job(customer: &Customer, address: String, change: impl FnOnce(&mut JobRequest)) -> Event {
    customer.request_with("", |request| {
        request.kind = JobKind::Speech;
        request.inputs = vec![Input {
            kind: InputKind::Url,
            ..Input::text(address)
        }];
        change(request);
    })
}

fn param(name: &str, value: &str) -> (String, String) {
    (name.to_string(), value.to_string())
}

fn tone(folder: &Folder) -> Vec<u8> {
    std::fs::read(folder.at("tone.wav")).unwrap()
}

/// The output of `candle-dvm transcribe` for the tone.
fn transcribed(folder: &Folder) -> Value {
    let (tone, model) = (folder.at("tone.wav"), folder.path().display().to_string());
    let args = [
        "transcribe",
        &tone,
        "--model",
        &model,
        "--json",
        "--device",
        "cpu",
    ];
    serde_json::from_str(&stdout(&run(&args))).unwrap()
}

/// A service of the folder's model alone.
fn daemon(relay: &TestRelay, dir: &Path, folder: &Folder) -> Daemon {
    let config = dir.join("serve.toml");
    std::fs::write(&config, "url-hosts = [\"127.0.0.1\"]\n").unwrap();
    let model = folder.path().display().to_string();
    let extra = [
        "--config",
        config.to_str().unwrap(),
        "--speech-model",
        &model,
    ];
    Daemon::start(&[&relay.url], dir, &extra)
}

#[test]
fn a_recording_is_transcribed_as_the_program_does_it() {
    let folder = Folder::new();
    let files = Files::serve([("tone.wav", tone(&folder))]);
    let expected = transcribed(&folder);
    let text = expected["text"].as_str().unwrap();
    assert!(!text.is_empty());
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let _daemon = daemon(&relay, dir.path(), &folder);
    let announced = Announcement::read(&relay.wait_for(31990, 1)[0]).unwrap();
    assert_eq!(announced.kinds, [JobKind::Speech]);
    assert_eq!(announced.model, None);
    assert_eq!(announced.params["language"].values, ["en"]);
    let provider = relay.wait_for(31990, 1)[0].pubkey.to_hex();

    let (address, hidden) = (files.at("tone.wav"), ["--provider", &provider, "--encrypt"]);
    let request = [
        "request", "--relay", &relay.url, "--kind", "5000", "--url", &address,
    ];
    let open = stdout(&run(&request));
    assert_eq!(open.trim_end(), text);
    assert_eq!(stdout(&run(&[&request[..], &hidden].concat())), open);
    let shown = relay.of_kind(6000);
    assert!(shown[0].content == text && shown[1].content != text);
    let timed = [&request[..], &["--param", "timestamps=true"]].concat();
    assert!(stdout(&run(&timed)).starts_with("[00:00:0"));

    let customer = Customer::new();
    let asked = job(&customer, address.clone(), |request| {
        request.output = Some("application/json".to_string());
    });
    relay.publish(&asked);
    let answer = customer.read(&relay.wait_for(6000, 4)[3]);
    let json: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(json["text"], text);
    assert_eq!(
        (&json["language"], &json["duration"]),
        (&"en".into(), &3.0.into())
    );
    assert_eq!(json["segments"][0]["end"], expected["segments"][0]["end"]);
    // Nobody here does texts.
    relay.publish(&customer.request("a text"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(relay.of_kind(6050).is_empty() && feedback(&relay, &customer, &asked).len() == 1);
    let found = stdout(&run(&["discover", "--relay", &relay.url]));
    assert!(found.contains("speech to text (kind 5000)"), "{found}");
}

#[test]
#[cfg(unix)]
fn a_recording_has_one_result_though_the_service_is_killed() {
    let folder = Folder::new();
    let files = Files::serve([("tone.wav", tone(&folder))]);
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let first = daemon(&relay, dir.path(), &folder);
    relay.wait_for(31990, 1);
    files.hold(true);
    let customer = Customer::new();
    relay.publish(&job(&customer, files.at("tone.wav"), |_| ()));
    wait_until(|| "nobody fetches".to_string(), || files.asked() > 0);
    drop(first);
    files.hold(false);
    let _second = daemon(&relay, dir.path(), &folder);
    let text = customer.read(&relay.wait_for(6000, 1)[0]).text;
    assert_eq!(text, transcribed(&folder)["text"].as_str().unwrap());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(relay.of_kind(6000).len(), 1);
}

#[test]
fn unsuitable_recordings_are_refused_with_their_reason() {
    let folder = Folder::new();
    let whisper = SpeechFiles::open(folder.path()).unwrap();
    let whisper = whisper.load(&Device::Cpu, None, Default::default());
    let whisper = Arc::new(Ear::new(whisper.unwrap(), 2));
    let text = b"not a sound, but a text of some length".to_vec();
    let files = Files::serve([
        ("tone.wav", tone(&folder)),
        ("text.mp3", text),
        ("empty.wav", Vec::new()),
        ("large.wav", vec![0; 200_000]),
    ]);
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let served = Served::hearing(&[&relay], dir.path(), whisper, |settings| {
        settings.url_hosts = vec!["127.0.0.1".to_string()];
        settings.recording_bytes = 100_000;
    });
    let customer = Customer::new();
    let refused = |address: String, change: &dyn Fn(&mut JobRequest), part: &str| {
        let job = job(&customer, address, |request| change(request));
        relay.publish(&job);
        let reason = error(&relay, &customer, &job);
        assert!(reason.contains(part), "{reason}: {part}");
    };
    let tone = || files.at("tone.wav");
    refused(tone(), &|_| (), "longer than 2 s");
    refused(files.at("text.mp3"), &|_| (), "expected WAV, FLAC, MP3");
    refused(files.at("empty.wav"), &|_| (), "empty");
    refused(files.at("large.wav"), &|_| (), "more than 100000 bytes");
    refused(files.at("none.wav"), &|_| (), "404");
    let elsewhere = "http://localhost:1/a.wav".to_string();
    refused(elsewhere, &|_| (), "does not fetch URLs");
    let german = |request: &mut JobRequest| request.params = vec![param("language", "de")];
    refused(tone(), &german, "`language`: this model knows en");
    let english = |request: &mut JobRequest| request.params = vec![param("translate", "true")];
    refused(tone(), &english, "cannot translate");
    let often = |request: &mut JobRequest| request.params = vec![param("translate", "often")];
    refused(tone(), &often, "true or false");
    let other = |request: &mut JobRequest| request.params = vec![param("model", "other")];
    let to_us = |request: &mut JobRequest| request.providers = vec![served.keys.public_key()];
    refused(
        tone(),
        &|request| {
            other(request);
            to_us(request)
        },
        "\"ears\"",
    );
    let image = |request: &mut JobRequest| request.output = Some("image/png".to_string());
    refused(
        tone(),
        &|request| {
            image(request);
            to_us(request)
        },
        "text/plain or application/json",
    );
    let text = |request: &mut JobRequest| request.inputs = vec![Input::text("a text")];
    refused(
        tone(),
        &|request| {
            text(request);
            to_us(request)
        },
        "the address of a recording",
    );
    assert!(relay.of_kind(6000).is_empty());
}

/// Hears one word after another until the test says that this is enough.
#[derive(Default)]
struct Ears {
    started: AtomicU64,
    enough: AtomicBool,
}

impl Listener for Ears {
    fn languages(&self) -> &[&'static str] {
        &["en"]
    }

    fn translates(&self) -> bool {
        true
    }

    fn check(&self, _: &Recording) -> Result<()> {
        Ok(())
    }

    fn listen(
        &self,
        recording: &Recording,
        _: &SpeechParams,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Product> {
        self.started.fetch_add(1, SeqCst);
        let mut text = String::new();
        while !self.enough.load(SeqCst) {
            text.push_str(" word");
            if on_piece(" word").is_break() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Product {
            text: format!("{} bytes:{text}", recording.bytes.len()),
            prompt_tokens: 0,
            tokens: 1,
            seconds: 0.,
        })
    }
}

#[test]
fn recordings_are_heard_one_at_a_time_and_hold_up_no_text() {
    let files = Files::serve([("a.wav", vec![1; 7])]);
    let (relay, dir) = (TestRelay::start(), tempfile::tempdir().unwrap());
    let ears = Arc::new(Ears::default());
    let served = Served::hearing(&[&relay], dir.path(), ears.clone(), |settings| {
        settings.url_hosts = vec!["127.0.0.1".to_string()];
        settings.recordings = 4;
        settings.running = 1;
    });
    let announced = Announcement::read(&relay.wait_for(31990, 1)[0]).unwrap();
    assert_eq!(announced.kinds, JobKind::ALL);
    let customers: Vec<Customer> = (0..4).map(|_| Customer::new()).collect();
    let jobs: Vec<Event> = customers
        .iter()
        .map(|customer| job(customer, files.at("a.wav"), |_| ()))
        .collect();
    for job in &jobs[..3] {
        relay.publish(job);
    }
    let started = || ears.started.load(SeqCst);
    wait_until(|| "nothing starts".to_string(), || started() == 1);
    wait_until(|| "not all are fetched".to_string(), || files.asked() == 3);
    // A quarter of the slots is for known customers.
    relay.publish(&jobs[3]);
    let reason = error(&relay, &customers[3], &jobs[3]);
    assert!(reason.contains("queue is full"), "{reason}");
    relay.publish(&customers[3].request("a text"));
    relay.wait_for(6050, 1);
    assert_eq!(started(), 1, "one at a time");
    let partial = |customer: usize| {
        let told = feedback(&relay, &customers[customer], &jobs[customer]);
        told.iter().any(|told| told.status == Status::Partial)
    };
    wait_until(|| "no partial".to_string(), || (0..3).any(partial));
    // The one that runs makes way for the next.
    let at = (0..3).find(|at| partial(*at)).unwrap();
    let cancel = cancellation::write(&customers[at].0, now(), JobKind::Speech, &jobs[at].id);
    relay.publish(&cancel.unwrap());
    wait_until(|| "the next does not start".to_string(), || started() == 2);
    ears.enough.store(true, SeqCst);
    let results = relay.wait_for(6000, 2);
    assert!(results
        .iter()
        .all(|result| result.content.starts_with("7 bytes:")));
    assert!(results
        .iter()
        .all(|result| result.pubkey == served.keys.public_key()));
    served.stop();
    assert_eq!(relay.of_kind(6000).len(), 2);
}
