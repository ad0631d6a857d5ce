/* SPDX-License-Identifier: MIT */
#include "formats/added_tokens.h"

#include <string.h>

#include "base/mem.h"
#include "formats/bpe.h"
#include "formats/json.h"

/* ------------------------------------------------------------------ the trie */

static enum uly_status new_node(struct uly_trie *trie, unsigned char byte, int32_t *out)
{
    if (trie->n == trie->room) {
        int32_t room = trie->room ? 2 * trie->room : 64;
        void *nodes = trie->nodes;
        ULY_TRY(uly_realloc(&nodes, (size_t)room, sizeof *trie->nodes));
        trie->nodes = nodes;
        trie->room = room;
    }
    trie->nodes[trie->n] = (struct uly_trie_node){0, 0, -1, byte};
    *out = trie->n++;
    return ULY_OK;
}

static int32_t find_child(const struct uly_trie *trie, int32_t node, unsigned char byte)
{
    int32_t child = trie->nodes[node].child;
    while (child && trie->nodes[child].byte != byte)
        child = trie->nodes[child].sibling;
    return child;
}

static enum uly_status trie_add(struct uly_trie *trie, const char *content, int32_t id)
{
    int32_t node = 0, child = 0;
    if (trie->n == 0)
        ULY_TRY(new_node(trie, 0, &node));
    for (const unsigned char *p = (const unsigned char *)content; *p; p++) {
        child = find_child(trie, node, *p);
        if (!child) {
            ULY_TRY(new_node(trie, *p, &child));
            trie->nodes[child].sibling = trie->nodes[node].child;
            trie->nodes[node].child = child;
        }
        node = child;
    }
    trie->nodes[node].token = id;
    trie->starts[(unsigned char)content[0]] = true;
    return ULY_OK;
}

void uly_trie_search(const struct uly_trie *trie, const unsigned char *text, int64_t bytes,
                     int64_t from, int64_t *begin, int64_t *end, int32_t *id)
{
    for (int64_t at = from; trie->n > 0 && at < bytes; at++) {
        if (!trie->starts[text[at]])
            continue;
        int32_t node = 0, found = -1;
        int64_t stop = at;
        for (int64_t i = at; i < bytes; i++) {
            node = find_child(trie, node, text[i]);
            if (!node)
                break;
            if (trie->nodes[node].token >= 0) {
                found = trie->nodes[node].token;
                stop = i + 1;
            }
        }
        if (found >= 0) {
            *begin = at;
            *end = stop;
            *id = found;
            return;
        }
    }
    *begin = *end = bytes;
    *id = -1;
}

/* ------------------------------------------------------------------ the list */

static enum uly_status read_token(const json_t *node, const char *name, struct uly_added_token *out)
{
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    const char *content = NULL;
    int64_t id = -1;
    ULY_TRY(uly_json_get_string(node, "content", name, &content));
    ULY_TRY(uly_json_get_int(node, "id", name, &id));
    ULY_FAIL_IF(!content || !*content || id < 0 || id > ULY_MAX_TOKEN_ID, ULY_ERR_FORMAT,
                "%s: an added token without content, or with an id outside 0 ... %d", name,
                (int)ULY_MAX_TOKEN_ID);
    for (int i = 0; i < 3; i++) {
        bool set = false;
        ULY_TRY(uly_json_get_bool(node, refused[i], name, &set));
        ULY_FAIL_IF(set, ULY_ERR_UNSUPPORTED, "%s: added token \"%.60s\": %s is not supported yet",
                    name, content, refused[i]);
    }
    ULY_TRY(uly_json_get_bool(node, "special", name, &out->special));
    out->normalized = !out->special;
    ULY_TRY(uly_json_get_bool(node, "normalized", name, &out->normalized));
    out->id = (int32_t)id;
    out->bytes = (int64_t)strlen(content);
    return uly_strdup(content, &out->content);
}

enum uly_status uly_added_tokens_init(struct uly_added_tokens *out, const json_t *list,
                                      const char *name)
{
    size_t n = json_array_size(list);
    ULY_TRY(ULY_ALLOC(&out->list, n));
    for (size_t i = 0; i < n; i++) {
        struct uly_added_token *token = &out->list[out->n];
        ULY_TRY(read_token(json_array_get(list, i), name, token));
        out->n++;
        ULY_TRY(trie_add(&out->tries[token->normalized], token->content, token->id));
    }
    return ULY_OK;
}

void uly_added_tokens_clear(struct uly_added_tokens *tokens)
{
    for (int64_t i = 0; i < tokens->n; i++)
        uly_free(tokens->list[i].content);
    uly_free(tokens->list);
    uly_free(tokens->tries[0].nodes);
    uly_free(tokens->tries[1].nodes);
    *tokens = (struct uly_added_tokens){0};
}

const struct uly_added_token *uly_added_tokens_find(const struct uly_added_tokens *tokens,
                                                    const char *content)
{
    for (int64_t i = 0; i < tokens->n; i++)
        if (strcmp(tokens->list[i].content, content) == 0)
            return &tokens->list[i];
    return NULL;
}
