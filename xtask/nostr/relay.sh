#!/bin/sh
# PyPI's nostr-relay, with its database in a folder. It asks everybody who they are (NIP-42), and logs whom it knows.
# usage: relay.sh VENV FOLDER PORT
set -e
venv=$1 folder=$2 port=$3
cat > "$folder/relay.yaml" <<END
storage:
  sqlalchemy.url: sqlite+aiosqlite:///$folder/relay.sqlite3
  validators:
    - nostr_relay.validators.is_signed
verification:
  nip05_verification: disabled
authentication:
  enabled: true
  relay_urls: ["ws://127.0.0.1:$port", "ws://127.0.0.1:$port/"]
gunicorn:
  bind: 127.0.0.1:$port
  workers: 1
END
# It starts helpers by name, and leaves a socket in the home folder.
export PATH="$venv/bin:$PATH" HOME="$folder"
cd "$folder"
exec nostr-relay --config relay.yaml serve
