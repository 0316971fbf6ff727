//! Sizes of memory as texts, for command lines and configuration files.

/// The bytes of a size such as `8GB`, `512MiB` or `1000000`.
///
/// # Errors
/// Another text, or less than a byte; the error says what is expected.
pub fn parse(text: &str) -> std::result::Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "kib" => 1024.,
        "mib" => 1024. * 1024.,
        "gib" => 1024. * 1024. * 1024.,
        _ => f64::NAN,
    };
    let bytes = number.parse::<f64>().unwrap_or(f64::NAN) * factor;
    if bytes >= 1. {
        Ok(bytes as u64)
    } else {
        Err("expected a size such as 8GB or 512MiB".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes() {
        assert_eq!(parse("1000"), Ok(1000));
        assert_eq!(parse("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(parse("2MiB"), Ok(2 << 20));
        for wrong in ["", "GB", "-1", "8 apples", "0", "1.2.3k"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
