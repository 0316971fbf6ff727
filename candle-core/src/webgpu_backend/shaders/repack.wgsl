// Packs words of a plane from the blocks of a file: each word consists of groups of PIECE bits, and `places` holds the bit offset, in a
// unit of UNIT_BYTES bytes, of each group of a plane's UNIT_WORDS words. A group is within one byte.

const NOTHING = 0xffffffffu;
const PIECES = 32u / PIECE;
const MASK = (1u << PIECE) - 1u;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = flat(workgroup, workgroups, local, WG);
  if (word >= p.words) {
    return;
  }
  let first = word / UNIT_WORDS * UNIT_BYTES;
  let places_first = word % UNIT_WORDS * PIECES;
  var value = 0u;
  for (var i = 0u; i < PIECES; i++) {
    let place = places[places_first + i];
    if (place != NOTHING) {
      let byte = first + place / 8u;
      // The last unit may have fewer blocks than the others.
      if (byte < p.bytes) {
        let bit = byte % 4u * 8u + place % 8u;
        value |= ((blocks[byte / 4u] >> bit) & MASK) << (i * PIECE);
      }
    }
  }
  plane[word] = value;
}
