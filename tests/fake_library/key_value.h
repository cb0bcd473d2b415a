/* Reads the key=value file that the environment variable CONFIG names, anew at every call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 512

static int value(const char *key, char *out) {
    char line[SIZE];
    size_t length = strlen(key);
    int found = 0;
    const char *path = getenv(CONFIG);
    FILE *file = path ? fopen(path, "r") : NULL;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            strcpy(out, line + length + 1);
            found = 1;
        }
    }
    if (file)
        fclose(file);
    return found;
}
