//! Blind signatures on secp256k1 (NUT-00): what the mint signs does not show which coin it will be.

use secp256k1::{PublicKey, Scalar, Secp256k1, SecretKey};

const DOMAIN: &[u8] = b"Secp256k1_HashToCurve_Cashu_";

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// The SHA-256 of a text.
pub fn hash(text: &str) -> [u8; 32] {
    sha256(&[text.as_bytes()])
}

/// Maps a secret to a point of the curve.
///
/// # Errors
/// No point is found, which is as likely as a broken SHA-256.
pub fn point(secret: &str) -> Result<PublicKey, String> {
    let hash = sha256(&[DOMAIN, secret.as_bytes()]);
    (0..1u32 << 16)
        .find_map(|counter| {
            let x = sha256(&[&hash, &counter.to_le_bytes()]);
            let mut compressed = [2; 33];
            compressed[1..].copy_from_slice(&x);
            PublicKey::from_slice(&compressed).ok()
        })
        .ok_or_else(|| "no point for this secret".to_string())
}

/// A secret's point, blinded by the factor `r`: the message that the mint signs.
///
/// # Errors
/// The sum is the point at infinity, which no factor drawn at random gives.
pub fn blind(secret: &str, r: &SecretKey) -> Result<PublicKey, String> {
    let mask = PublicKey::from_secret_key(&Secp256k1::new(), r);
    point(secret)?.combine(&mask).map_err(|err| err.to_string())
}

/// The mint's signature without the factor `r`; `key` is the mint's for the amount.
///
/// # Errors
/// A signature or a key that no honest mint gives.
pub fn unblind(signature: &PublicKey, r: &SecretKey, key: &PublicKey) -> Result<PublicKey, String> {
    let secp = Secp256k1::new();
    let text = |err: secp256k1::Error| err.to_string();
    let mask = key.mul_tweak(&secp, &Scalar::from(*r)).map_err(text)?;
    signature.combine(&mask.negate(&secp)).map_err(text)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from hexadecimal digits; `None` for anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)?;
        let is_hex = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u8::from_str_radix(pair, 16).ok())?
    };
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of NUT-00.
    #[test]
    fn points_are_those_of_the_specification() {
        let text = String::from_utf8;
        let secrets = [
            (
                [0; 32],
                "024cce997d3b518f739663b757deaec95bcd9473c30a14ac2fd04023a739d1a725",
            ),
            (
                {
                    let mut one = [0; 32];
                    one[31] = 1;
                    one
                },
                "022e7158e11c9506f1aa4248bf531298daa7febd6194f003edcd9b93ade6253acf",
            ),
        ];
        for (secret, expected) in secrets {
            let secret = text(secret.to_vec()).unwrap();
            assert_eq!(point(&secret).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn what_is_unblinded_is_the_mints_signature_on_the_secret() {
        let secp = Secp256k1::new();
        let (mint, r) = (
            SecretKey::from_slice(&[3; 32]).unwrap(),
            SecretKey::from_slice(&[5; 32]).unwrap(),
        );
        let signed = |point: PublicKey| point.mul_tweak(&secp, &Scalar::from(mint)).unwrap();
        let signature = signed(blind("secret", &r).unwrap());
        let key = PublicKey::from_secret_key(&secp, &mint);
        assert_eq!(
            unblind(&signature, &r, &key).unwrap(),
            signed(point("secret").unwrap())
        );
    }

    #[test]
    fn hexadecimal_reads_back() {
        assert_eq!(from_hex(&hex(&[0, 1, 255])), Some(vec![0, 1, 255]));
        for wrong in ["0", "0g", "+1", "é"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }
}
