//! What the service says about itself: the announcement and the heartbeat.

use super::actor::Service;
use super::now;
use super::offers::{SpeechOffer, TextOffer};
use super::settings::Settings;
use crate::nip90::announcement::{ParamInfo, ServedModel};
use crate::nip90::{Announcement, Heartbeat};
use crate::relay::Keep;
use crate::{Error, Result};
use web_time::Instant;

fn range(min: &str, max: Option<String>, default: Option<String>) -> ParamInfo {
    ParamInfo {
        min: Some(min.to_string()),
        max,
        default,
        ..ParamInfo::default()
    }
}

fn one_of(values: &[&str], default: Option<&str>) -> ParamInfo {
    ParamInfo {
        values: values.iter().map(ToString::to_string).collect(),
        default: default.map(str::to_string),
        ..ParamInfo::default()
    }
}

const YES_OR_NO: [&str; 2] = ["true", "false"];

impl Settings {
    fn is_chat(&self, offer: &TextOffer) -> bool {
        offer.template.is_some() && !self.raw
    }

    fn text_params(&self, offer: &TextOffer) -> Vec<(&'static str, ParamInfo)> {
        let text = |text: &str| Some(text.to_string());
        let tokens = |tokens: usize| Some(tokens.to_string());
        let is_raw = (!self.is_chat(offer)).to_string();
        let raw: &[&str] = match offer.template {
            Some(_) => &YES_OR_NO,
            None => &["true"],
        };
        let (most, standard) = (tokens(self.max_tokens), tokens(self.default_tokens));
        let mut params = vec![
            ("max_tokens", range("1", most, standard)),
            ("temperature", range("0", None, text("0"))),
            ("top_k", range("0", None, None)),
            ("top_p", range("0", text("1"), None)),
            ("min_p", range("0", text("1"), text("0"))),
            ("frequency_penalty", range("0", text("100"), text("1"))),
            ("seed", range("0", text(&u64::MAX.to_string()), None)),
            ("stop", ParamInfo::default()),
            ("raw", one_of(raw, Some(&is_raw))),
        ];
        if offer.template.is_some() {
            params.push(("system", ParamInfo::default()));
        }
        params
    }
}

fn speech_params(offer: &SpeechOffer) -> Vec<(&'static str, ParamInfo)> {
    let translate: &[&str] = if offer.listener.translates() {
        &YES_OR_NO
    } else {
        &["false"]
    };
    vec![
        ("language", one_of(offer.listener.languages(), None)),
        ("translate", one_of(translate, Some("false"))),
        ("timestamps", one_of(&YES_OR_NO, Some("false"))),
    ]
}

impl Service {
    /// The announcement, with the current limits.
    pub(super) fn announcement(&self) -> Announcement {
        let settings = &self.settings;
        let kinds = self.offers.kinds();
        let models: Vec<&str> = kinds
            .iter()
            .filter_map(|kind| self.offers.model(*kind))
            .collect();
        let (text, speech) = (self.offers.text.as_ref(), self.offers.speech.as_ref());
        let mut params = vec![("model", one_of(&models, models.first().copied()))];
        params.extend(text.into_iter().flat_map(|text| settings.text_params(text)));
        params.extend(speech.into_iter().flat_map(speech_params));
        let params = params.into_iter();
        let params = params.map(|(name, info)| (name.to_string(), info));
        let topics = kinds.iter().map(|kind| kind.name().replace(' ', "-"));
        Announcement {
            identifier: settings.identifier.clone(),
            name: settings.name.clone(),
            about: settings.about.clone(),
            picture: settings.picture.clone(),
            model: text.map(|text| ServedModel {
                name: text.model.clone(),
                prompt: if settings.is_chat(text) {
                    "chat"
                } else {
                    "raw"
                }
                .to_string(),
                context: text.generator.context().map(|tokens| tokens as u64),
            }),
            speech_model: speech.map(|speech| speech.model.clone()),
            params: params.collect(),
            topics: topics.chain(["candle".to_string()]).collect(),
            encryption: true,
            mints: self.payment.cash().map_or(Vec::new(), |cash| cash.mints()),
            amount_msat: Some(self.payment.price_msat()),
            kinds,
        }
    }

    /// Makes the announcement; relays get it when they are connected.
    pub(super) fn make_announcement(&mut self) -> Result<()> {
        let announcement = self.announcement().write(&self.keys, now());
        self.announcement = Some(announcement.map_err(Error::service)?);
        self.announced = Instant::now();
        Ok(())
    }

    /// Publishes the announcement again before clients treat it as outdated.
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
