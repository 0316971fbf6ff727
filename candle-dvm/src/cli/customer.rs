//! What the customer's commands share: some relays, and what they say.

use crate::relay::driver::{Command, Driver, Report};
use crate::relay::{normal_url, Keep, Reach};
use crate::{Error, Result};
use candle_engine::error::one_line;
use futures_channel::mpsc;
use futures_util::StreamExt;
use nostr::prelude::{Event, Filter, Keys};
use std::collections::BTreeMap;

/// A stranger's words without what would move the cursor, as one line.
pub(super) fn plain(text: &str) -> String {
    let text = one_line(text);
    text.chars().filter(|c| !c.is_control()).collect()
}

pub(super) struct Relays {
    drivers: BTreeMap<String, Driver>,
    reports: mpsc::Receiver<(String, Report)>,
}

impl Relays {
    /// Starts to connect.
    pub(super) fn connect(urls: &[String], keys: &Keys) -> Result<Self> {
        let (report, reports) = mpsc::channel(256);
        let mut drivers = BTreeMap::new();
        for text in urls {
            let url = normal_url(text).map_err(|err| Error::Setting {
                name: "relay",
                value: text.clone(),
                expected: format!("a ws:// or wss:// address: {err}"),
            })?;
            let driver = Driver::start(&url, keys.clone(), Reach::Anywhere, report.clone());
            drivers.insert(url, driver);
        }
        Ok(Self { drivers, reports })
    }

    pub(super) fn count(&self) -> usize {
        self.drivers.len()
    }

    pub(super) fn subscribe(&self, name: &str, filter: &Filter, once: bool) {
        for driver in self.drivers.values() {
            driver.send(Command::Subscribe {
                name: name.to_string(),
                filter: Box::new(filter.clone()),
                cursor: None,
                once,
            });
        }
    }

    pub(super) fn publish(&self, event: &Event) {
        for driver in self.drivers.values() {
            driver.send(Command::Publish(Box::new(event.clone()), Keep::Until));
        }
    }

    pub(super) async fn next(&mut self) -> (String, Report) {
        match self.reports.next().await {
            Some(report) => report,
            // Without a driver, no report can arrive.
            None => std::future::pending().await,
        }
    }
}
