// The gated delta rule in half precision: numbers of tokens that scale rows and columns of its tiles.
#pragma once
#include "recurrent_tiles.cuh"

// Numbers of the tokens of a chunk, in the order of the workspace. Decays count from the chunk's beginning
// on; those of tokens that do not see the state before the chunk are 0.
enum Scale {
    KEY_SINCE,    // decay / norm of the key
    KEY_UNTIL,    // decay from the token to the chunk's end * rate / norm of the key
    QUERY_SINCE,  // decay / norm of the query / root of the width
    SINCE,        // decay
    SUM,          // logarithm of the decay, whether or not the token sees the state
    KEY,          // 1 / norm of the key
    QUERY,        // 1 / norm of the query / root of the width
    UNTIL,        // decay from the token to the chunk's end
    RATE,
    SCALES
};
