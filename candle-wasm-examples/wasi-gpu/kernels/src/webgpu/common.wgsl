// Comes before every kernel.

const SIZE = 256u;

// A number for each workgroup of a grid that is folded into y.
fn flat(group: vec3<u32>, groups: vec3<u32>) -> u32 {
  return group.y * groups.x + group.x;
}

// By bits, because a compiler may assume that floats are never NaN.
fn is_nan(bits: u32) -> bool {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// Orders as the float with these bits; -0 and 0 are equal, and NaN is above everything. An integer, because a device may take
// subnormal numbers for 0.
fn key(bits: u32) -> u32 {
  if is_nan(bits) {
    return 0xffffffffu;
  }
  if (bits << 1u) == 0u {
    return 0x80000000u;
  }
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// As `key`, for what others are compared with: nothing is at most NaN.
fn threshold_key(bits: u32) -> u32 {
  return select(key(bits), 0u, is_nan(bits));
}
