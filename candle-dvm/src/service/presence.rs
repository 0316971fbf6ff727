//! What the service says about itself: the announcement and the heartbeat.

use super::actor::Service;
use super::now;
use crate::nip90::announcement::{ParamInfo, ServedModel};
use crate::nip90::{Announcement, Heartbeat};
use crate::relay::Keep;
use crate::{Error, Result};
use std::collections::BTreeMap;
use web_time::Instant;

impl Service {
    /// What is announced: the limits that hold.
    pub(super) fn announcement(&self) -> Announcement {
        let settings = &self.settings;
        let range = |min: &str, max: Option<String>, default: Option<String>| ParamInfo {
            min: Some(min.to_string()),
            max,
            default,
            ..ParamInfo::default()
        };
        let model = ParamInfo {
            values: vec![self.model.clone()],
            default: Some(self.model.clone()),
            ..ParamInfo::default()
        };
        let tokens = Some(settings.default_tokens.to_string());
        let text = |text: &str| Some(text.to_string());
        let params = [
            ("model", model),
            (
                "max_tokens",
                range("1", Some(settings.max_tokens.to_string()), tokens),
            ),
            ("temperature", range("0", None, text("0"))),
            ("top_k", range("0", None, None)),
            ("top_p", range("0", text("1"), None)),
            ("min_p", range("0", text("1"), text("0"))),
            ("frequency_penalty", range("0", text("100"), text("1"))),
            ("seed", range("0", text(&u64::MAX.to_string()), None)),
            ("stop", ParamInfo::default()),
        ];
        let is_chat = self.template.is_some() && !settings.raw;
        let raw = ParamInfo {
            values: match self.template {
                Some(_) => vec!["true".to_string(), "false".to_string()],
                None => vec!["true".to_string()],
            },
            default: Some((!is_chat).to_string()),
            ..ParamInfo::default()
        };
        let mut params: BTreeMap<String, ParamInfo> = params
            .into_iter()
            .map(|(name, info)| (name.to_string(), info))
            .collect();
        params.insert("raw".to_string(), raw);
        if self.template.is_some() {
            params.insert("system".to_string(), ParamInfo::default());
        }
        Announcement {
            identifier: settings.identifier.clone(),
            name: settings.name.clone(),
            about: settings.about.clone(),
            picture: settings.picture.clone(),
            model: Some(ServedModel {
                name: self.model.clone(),
                prompt: if is_chat { "chat" } else { "raw" }.to_string(),
                context: self.generator.context().map(|tokens| tokens as u64),
            }),
            params,
            topics: vec!["text-generation".to_string(), "candle".to_string()],
            encryption: true,
            amount_msat: Some(self.payment.price_msat()),
        }
    }

    /// Makes the announcement; relays get it when they are connected.
    pub(super) fn make_announcement(&mut self) -> Result<()> {
        let announcement = self.announcement().write(&self.keys, now());
        self.announcement = Some(announcement.map_err(Error::service)?);
        self.announced = Instant::now();
        Ok(())
    }

    /// Makes the announcement anew before it is too old for those who look for services.
    pub(super) fn renew_announcement(&mut self) -> Result<()> {
        let old = self.announced.elapsed().as_secs() >= self.settings.announce_seconds;
        if !old || self.announcement.is_none() {
            return Ok(());
        }
        self.make_announcement()?;
        if let Some(announcement) = self.announcement.clone() {
            for relay in self.relays.up() {
                self.relays.publish_to(&relay, &announcement, Keep::Until);
            }
        }
        Ok(())
    }

    /// A sign of life on every relay.
    pub(super) fn heartbeat(&mut self) {
        if self.announcement.is_some() {
            self.heartbeat_to(None);
        }
    }

    pub(super) fn heartbeat_to(&mut self, relay: Option<&str>) {
        let heartbeat = Heartbeat {
            identifier: self.settings.identifier.clone(),
            status: "online".to_string(),
            expiration: Some(now() + 3 * self.settings.heartbeat_seconds),
        };
        match (heartbeat.write(&self.keys, now()), relay) {
            (Ok(event), Some(relay)) => self.relays.publish_to(relay, &event, Keep::Now),
            (Ok(event), None) => self.relays.publish_own(&event, Keep::Now),
            (Err(err), _) => tracing::warn!(error = %err, "no heartbeat"),
        }
    }
}
