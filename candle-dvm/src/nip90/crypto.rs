//! Encrypted content: NIP-44, and NIP-04, which the text of NIP-90 names and older customers use.

use super::{ReadError, WriteError};
use nostr::nips::{nip04, nip44};
use nostr::prelude::{Keys, PublicKey};

/// The encryption scheme of a content. An answer uses the scheme of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// NIP-04.
    Nip04,
    /// NIP-44, version 2.
    Nip44,
}

impl Scheme {
    /// Encrypts for `reader`.
    ///
    /// # Errors
    /// A text that the scheme cannot hold: NIP-44 takes 1 to 65,535 bytes.
    pub fn encrypt(
        self,
        keys: &Keys,
        reader: &PublicKey,
        text: &str,
    ) -> Result<String, WriteError> {
        match self {
            Self::Nip04 => nip04::encrypt(keys.secret_key(), reader, text),
            Self::Nip44 => nip44::encrypt(keys.secret_key(), reader, text, nip44::Version::V2),
        }
        .map_err(|err| WriteError::Encryption(err.to_string()))
    }
}

/// Decrypts what `writer` encrypted for `keys`, and says in which scheme it was.
///
/// # Errors
/// [`ReadError::Undecryptable`].
pub fn decrypt(
    keys: &Keys,
    writer: &PublicKey,
    content: &str,
) -> Result<(String, Scheme), ReadError> {
    // Only NIP-04 has this separator, whose `?` no base64 holds.
    let (scheme, opened) = if content.contains("?iv=") {
        let opened = nip04::decrypt(keys.secret_key(), writer, content);
        (Scheme::Nip04, opened.ok())
    } else {
        let opened = nip44::decrypt(keys.secret_key(), writer, content);
        (Scheme::Nip44, opened.ok())
    };
    opened
        .map(|text| (text, scheme))
        .ok_or(ReadError::Undecryptable)
}
