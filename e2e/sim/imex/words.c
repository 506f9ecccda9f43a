// SPDX-License-Identifier: Apache-2.0

/* The words of states and connections, as both programs and their messages have them. */
#include <string.h>

#include "imex.h"

#define STATE(name) #name,
const char *const STATE_NAMES[STATE_COUNT] = {STATES(STATE)};
#undef STATE

#define NAME(name, letter, mark, meaning) #name,
const char *const CONNECTION_NAMES[CONNECTION_COUNT] = {CONNECTIONS(NAME)};
#undef NAME

#define MARK(name, letter, mark, meaning) mark,
const char *const CONNECTION_MARKS[CONNECTION_COUNT] = {CONNECTIONS(MARK)};
#undef MARK

#define MEANING(name, letter, mark, meaning) meaning,
const char *const CONNECTION_MEANINGS[CONNECTION_COUNT] = {CONNECTIONS(MEANING)};
#undef MEANING

#define LETTER(name, letter, mark, meaning) letter,
const char CONNECTION_LETTERS[CONNECTION_COUNT + 1] = {CONNECTIONS(LETTER) '\0'};
#undef LETTER

enum connection connection_of(char letter)
{
    const char *found = letter == '\0' ? NULL : strchr(CONNECTION_LETTERS, letter);
    return found == NULL ? INVALID : (enum connection)(found - CONNECTION_LETTERS);
}
